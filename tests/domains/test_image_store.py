"""Images of a run are files that are named after their content, and equal ones are one file."""

from __future__ import annotations

from pathlib import Path

from rlanything.domains.images import ImageStore


def test_equal_images_are_one_file_and_others_are_not(tmp_path: Path) -> None:
    first, again, other = (ImageStore(tmp_path / "images").put(data) for data in (b"a", b"a", b"b"))
    assert first == again != other and Path(first).read_bytes() == b"a" and Path(other).read_bytes() == b"b"
    assert sorted(map(str, (tmp_path / "images").rglob("*.*"))) == sorted((first, other)), "nothing else is left"


def test_an_image_keeps_the_ending_of_its_format(tmp_path: Path) -> None:
    assert ImageStore(tmp_path).put(b"jpeg", ".jpg").endswith(".jpg")
