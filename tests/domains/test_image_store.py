"""Images of a run are files that are named after their content, and equal ones are one file."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest

from rlanything.domains.images import ImageStore
from rlanything.errors import RunError


def test_equal_images_are_one_file_and_others_are_not(tmp_path: Path) -> None:
    first, again, other = (ImageStore(tmp_path / "images").put(data) for data in (b"a", b"a", b"b"))
    assert first == again != other and Path(first).read_bytes() == b"a" and Path(other).read_bytes() == b"b"
    assert sorted(map(str, (tmp_path / "images").rglob("*.*"))) == sorted((first, other)), "nothing else is left"


def test_an_image_keeps_the_ending_of_its_format(tmp_path: Path) -> None:
    assert ImageStore(tmp_path).put(b"jpeg", ".jpg").endswith(".jpg")


def test_a_full_disk_is_no_fault_of_the_environment(tmp_path):
    """An environment's fault is tried again; a disk that refuses ends the run (ClearError), and leaves no part."""
    store = ImageStore(tmp_path / "images")
    kept = store.put(b"small")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # as a quota that runs out
    try:
        with pytest.raises(RunError, match="the image could not be written .*File too large.*run the same command"):
            store.put(b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [str(path) for path in (tmp_path / "images").rglob("*") if path.is_file()] == [kept]
