"""Model folders as downloads leave them: cut, in part, or as pointers. Each is named before anything is loaded."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from safetensors.numpy import save_file

from rlanything.errors import ModelError
from rlanything.weights.files import INDEX, check_files, tensor_shapes

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n"
PARTS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def folder(tmp_path):
    for i, part in enumerate(PARTS):
        save_file({f"layer.{i}": np.ones((3, 4), np.float32)}, tmp_path / part)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {f"layer.{i}": part for i, part in enumerate(PARTS)}}))
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_a_whole_folder_is_taken(folder):
    check_files(folder)
    assert {name: math.prod(s) for part in PARTS for name, s in tensor_shapes(folder / part).items()} == {
        "layer.0": 12,
        "layer.1": 12,
    }


@pytest.mark.parametrize("name", [PARTS[1], "tokenizer.json", "config.json"])
def test_a_pointer_of_git_lfs_is_named(folder, name):
    (folder / name).write_text(POINTER)
    with pytest.raises(ModelError, match=f"{name} is a pointer of Git LFS.*git lfs pull"):
        check_files(folder)


def test_a_missing_part_is_named(folder):
    (folder / PARTS[1]).unlink()
    with pytest.raises(ModelError, match=f"lacks 1 of the 2 files that {INDEX} names, the first: {PARTS[1]}"):
        check_files(folder)


def test_a_folder_without_weights_is_named_but_older_formats_are_taken(folder):
    for name in (*PARTS, INDEX):
        (folder / name).unlink()
    with pytest.raises(ModelError, match="has no weights"):
        check_files(folder)
    (folder / "pytorch_model-00001-of-00001.bin").write_bytes(b"x" * 2000)
    check_files(folder)


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": []}'])
def test_an_index_that_cannot_be_read_is_named(folder, index):
    (folder / INDEX).write_text(index)
    with pytest.raises(ModelError, match=f"{INDEX} cannot be read"):
        check_files(folder)


@pytest.mark.parametrize("size", [0, 4, 8, 40, -1, -20])
def test_a_cut_file_is_named(folder, size):
    file = folder / PARTS[0]
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(ModelError, match=f"{PARTS[0]}: .*download it again"):
        check_files(folder)


@pytest.mark.parametrize(
    "data", [b"<html>404</html>" * 100, b"\xff" * 2000, b"\x02" + b"\0" * 7 + b"[]", b"PK\x03\x04" * 300]
)
def test_a_file_of_another_kind_is_named_and_takes_no_memory(folder, data):
    (folder / PARTS[0]).write_bytes(data)
    with pytest.raises(ModelError, match=f"{PARTS[0]}: "):
        check_files(folder)
