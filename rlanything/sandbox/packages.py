"""Packages that programs in the sandbox may import: installed once for a list of them, in a folder of their own."""

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from rlanything.errors import ClearError

INSTALL_S = 1800.0  # time that pip may take [s]

logger = logging.getLogger(__name__)


class PackagesUnavailable(ClearError, RuntimeError):
    """The packages cannot be installed or imported. The message says why and what to do."""


def install(packages: Sequence[str], cache: Path | None = None) -> Path:
    """Return the folder that holds the packages and what they need; pip fills it if it is not there yet.

    `packages` are requirements as pip reads them. The folder is in `cache` (by default the user's cache folder). Its
    name is a hash of the list and of the Python version. Raises PackagesUnavailable.
    """
    for package in packages:
        try:
            Requirement(package)
        except InvalidRequirement as error:
            raise PackagesUnavailable(
                f"sandbox.packages: found {package!r}, expected a name as in numpy>=2; one with a comma needs quotes: "
                '["numpy>=2,<3"]'
            ) from error
    cache = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlanything" / "sandbox"
    identity = json.dumps([sorted(packages), sys.version_info[:2], sys.base_prefix])
    folder = cache / hashlib.sha256(identity.encode()).hexdigest()[:16]
    if folder.is_dir():
        return folder
    logger.warning("installing packages for programs, once: %s", ", ".join(packages))
    cache.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix="part_", dir=cache))
    try:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
        done = subprocess.run(
            [*command, "--target", str(part), *packages], capture_output=True, text=True, timeout=INSTALL_S
        )
        if done.returncode:
            raise _unavailable(packages, done.stderr.strip())
        for path in [part, *part.rglob("*")]:  # programs are another user
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
        part.rename(folder)
    except subprocess.TimeoutExpired as error:
        raise _unavailable(packages, f"pip took more than {INSTALL_S:g} s") from error
    except OSError as error:
        if not folder.is_dir():  # else another process was faster
            raise _unavailable(packages, str(error)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def modules(folder: Path, packages: Sequence[str]) -> list[str]:
    """The names under which programs import `packages`, which are installed in a folder."""
    named = {canonicalize_name(Requirement(package).name) for package in packages}
    found = [d for d in distributions(path=[str(folder)]) if canonicalize_name(d.metadata["Name"]) in named]
    return sorted({module for distribution in found for module in _top_level(distribution)})


def _top_level(distribution: Distribution) -> set[str]:
    """The importable names at the top of a distribution, by the list of its files."""
    code = [file for file in distribution.files or () if file.suffix in (".py", ".so")]
    names = {file.parts[0].partition(".")[0] if len(file.parts) == 1 else file.parts[0] for file in code}
    return {name for name in names if name.isidentifier() and not name.startswith("_")}


def _unavailable(packages: Sequence[str], reason: str) -> PackagesUnavailable:
    last = reason.splitlines()[-1] if reason else "pip said nothing"
    if last.endswith("No module named pip"):
        last += f"; {sys.executable} -m ensurepip installs it"
    return PackagesUnavailable(
        f"sandbox.packages={list(packages)}: pip could not install them ({last}). Correct the names, or install them "
        "where there is a network: the folder is in ~/.cache/rlanything/sandbox"
    )
