"""Programs may import the packages that the configuration names, and nothing else of the machine's."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from rlanything.sandbox import packages
from rlanything.sandbox.packages import PackagesUnavailable, install, modules
from rlanything.sandbox.pool import Sandbox
from rlanything.sandbox.protocol import Execution, Limits, Verdict


def wheel(folder: Path, name: str, files: dict[str, str]) -> str:
    """Make the source of a package that pip can install without a network; return its requirement."""
    root = folder / name
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    tops = sorted({Path(path).parts[0] for path in files})
    parts = {
        "packages": [top for top in tops if not top.endswith(".py")],
        "py_modules": [top.removesuffix(".py") for top in tops if top.endswith(".py")],
    }
    (root / "setup.py").write_text(f"import setuptools\nsetuptools.setup(name={name!r}, version='1.0', **{parts})\n")
    return f"{name} @ {root.as_uri()}"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    good = wheel(
        folder,
        "own-numbers",
        {"own_numbers/__init__.py": "from own_numbers.more import TWO\n", "own_numbers/more.py": "TWO = 2\n"},
    )
    broken = wheel(folder, "own-broken", {"own_broken.py": "raise ValueError('no licence')\n"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PIP_NO_BUILD_ISOLATION", "1")
        yield good, broken


def run(packages: list[str], source: str) -> Execution:
    with Sandbox(1, packages=packages) as sandbox:
        return asyncio.run(sandbox.run(source.encode(), b"", Limits()))


def test_a_package_is_there_and_cannot_be_changed(own):
    source = (
        "import own_numbers, sys\nprint(own_numbers.TWO, 'own_numbers' in sys.modules)\n"
        "try:\n    open(own_numbers.__file__, 'a')\nexcept OSError as error:\n    print('refused')"
    )
    assert run([own[0]], source).output.decode() == "2 True\nrefused\n"


def test_without_it_the_program_fails_and_names_the_module(own):
    result = run([], "import own_numbers")
    assert result.verdict is Verdict.RUNTIME_ERROR and "No module named 'own_numbers'" in result.error


def test_packages_are_installed_once_where_every_user_can_read_them(own, monkeypatch):
    folder = install([own[0]])
    monkeypatch.setattr(packages.subprocess, "run", None)
    assert install([own[0]]) == folder and modules(folder, [own[0]]) == ["own_numbers"]
    for path in [folder, *folder.rglob("*")]:
        assert path.stat().st_mode & stat.S_IROTH


def test_a_package_that_pip_does_not_find_is_named(tmp_path):
    with pytest.raises(
        PackagesUnavailable, match="sandbox.packages=.*no-such-package-of-anyone.*pip could not install"
    ):
        install(["no-such-package-of-anyone==1"], tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_python_without_pip_is_told_how_to_get_it(tmp_path, monkeypatch):
    python = tmp_path / "python"  # as a virtual environment made without pip
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(packages.sys, "executable", str(python))
    with pytest.raises(PackagesUnavailable, match=f"{python} -m ensurepip installs it"):
        install(["numpy"], tmp_path / "cache")


@pytest.mark.parametrize("name", ["", "--index-url=x", "numpy>>2", "a b", "<3"])
def test_what_is_no_requirement_is_refused_before_pip_sees_it(tmp_path, name):
    with pytest.raises(PackagesUnavailable, match="expected a name"):
        install([name], tmp_path)


@pytest.mark.parametrize("allow_unisolated", [False, True])
def test_a_package_that_cannot_be_imported_is_named_and_never_drops_the_isolation(own, allow_unisolated):
    with pytest.raises(PackagesUnavailable, match=r"own_broken cannot be imported in the sandbox \(no licence\)"):
        Sandbox(1, allow_unisolated, packages=[own[1]])
