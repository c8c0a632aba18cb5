"""The files of a model's folder: all there, whole, and no pointers to others. Only their headers are read."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from safetensors import safe_open

from rlanything.errors import ClearError, ModelError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
OTHER_WEIGHTS = ("pytorch_model*.bin", "*.gguf")
NUM_ROW = 1024  # of a matrix that is compared
MAX_REASON = 300  # characters of an error of another library
MAX_HEADER_BYTES = 100_000_000  # what the safetensors library allows
_SHARD = re.compile(r".+-\d+-of-(\d+)\.safetensors")
_POINTER = b"version https://git-lfs"


def local_folder(path: str) -> Path:
    """The folder of a model's files on this machine: its own, or the hub's cache. It may be missing."""
    folder = Path(path)
    if not folder.is_dir():
        with suppress(LocalEntryNotFoundError, HFValidationError):
            folder = Path(snapshot_download(path, local_files_only=True))
    return folder


def check_files(folder: Path) -> None:
    """Check the files of a model's own folder. Raises ModelError if one is missing, cut, or a pointer of Git LFS, or if
    engines and learners would read different weights."""
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.stat().st_size < 1024 and file.read_bytes().startswith(_POINTER):
            raise ModelError(
                f"model {folder}: {file.name} is a pointer of Git LFS, not the file; run git lfs pull there"
            )
    weights = sorted(folder.glob("*.safetensors"))
    if not weights and not any(next(folder.glob(pattern), None) for pattern in OTHER_WEIGHTS):
        raise ModelError(f"model {folder}: has no weights, expected *.safetensors; download the whole model")
    named = _named_by_index(folder)
    if weights:
        _check_kinds(folder, [file.name for file in weights], named)
    for file in weights:
        if not file.is_file():
            raise ModelError(f"model {folder}: {file.name} is no file; download it again")
        tensor_shapes(file)


def _check_kinds(folder: Path, names: Sequence[str], named: Sequence[str]) -> None:
    """Raise ModelError if the .safetensors files are not all of one model's weights, and no more.

    `named` are those that the index names; none if there is no index.
    """
    merge = "merge them (peft's merge_and_unload) and save all"
    if all(name.startswith("adapter_") for name in names):
        raise ModelError(f"model {folder}: holds adapters of another model alone; {merge}")
    if (folder / "adapter_config.json").is_file():  # transformers would load them, vLLM would not
        raise ModelError(f"model {folder}: holds adapters beside whole weights; {merge}, or remove adapter_config.json")
    own = [name for name in names if not name.startswith("consolidated")]
    if not own:
        raise ModelError(
            f"model {folder}: holds its weights as {names[0]} alone, which transformers cannot read; download "
            "model*.safetensors too"
        )
    if SINGLE in own and len(own) > 1 and SINGLE not in named:
        other = next(name for name in own if name != SINGLE)
        raise ModelError(
            f"model {folder}: holds {SINGLE} and {other}, of which engines and learners would read different ones; "
            "remove those that do not belong to the model"
        )
    shards = [found for name in own if (found := _SHARD.fullmatch(name))]
    if shards and not named and len(shards) < int(shards[0][1]):
        raise ModelError(
            f"model {folder}: holds {len(shards)} of {int(shards[0][1])} files of weights; download the whole model"
        )


def _named_by_index(folder: Path) -> list[str]:
    """The files that the index names; none if there is no index. Raises ModelError if one of them is missing."""
    if not (folder / INDEX).is_file():
        return []
    try:
        named = sorted({str(name) for name in json.loads((folder / INDEX).read_text())["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"model {folder}: {INDEX} cannot be read ({error!r}); download it again") from error
    if missing := [name for name in named if not (folder / name).is_file()]:
        raise ModelError(
            f"model {folder}: lacks {len(missing)} of the {len(named)} files that {INDEX} names, the first: "
            f"{missing[0]}; download the whole model"
        )
    return named


@contextmanager
def loading(path: str) -> Iterator[None]:
    """Turn what transformers raises while it loads a model into a ModelError: each model has its own checks."""
    try:
        yield
    except (ClearError, MemoryError, torch.OutOfMemoryError, torch.distributed.DistError):
        raise
    except Exception as error:
        if "gloo" in str(error):  # a lost rank, where ZeRO-3 shares the weights out
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_REASON]
        raise ModelError(
            f"model {path}: transformers cannot load it ({why}); are config.json, generation_config.json and the "
            "weights of one model, and does this version of transformers know it?"
        ) from error


def tensor_shapes(file: Path) -> dict[str, list[int]]:
    """Names and shapes of the tensors of a .safetensors file. Raises ModelError if the file is cut or no such file."""
    size = file.stat().st_size
    try:
        with open(file, "rb") as f:
            num_header = int.from_bytes(f.read(8), "little")
            if num_header > min(size - 8, MAX_HEADER_BYTES):
                raise ValueError(f"its header would have {num_header} bytes")
            header = json.loads(f.read(num_header))
        tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
        end = 8 + num_header + max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
        shapes = {name: list(tensor["shape"]) for name, tensor in tensors.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{file}: no safetensors file of {size} bytes ({error}); download it again") from error
    if size != end:
        raise ModelError(f"{file}: found {size} bytes, but its header says {end}; the file is cut, download it again")
    return shapes


def untied_head(files: Sequence[Path]) -> tuple[str, str] | None:
    """Names of the head's and the embedding's weights, if .safetensors files hold both and they differ.

    Only their first rows are read.
    """
    places = {name: file for file in files for name in tensor_shapes(file)}
    head = next((name for name in places if name.endswith("lm_head.weight")), "")
    embedding = next((name for name in places if name.endswith("embed_tokens.weight")), "")
    if not (head and embedding):
        return None
    first, second = (_first_rows(places[name], name) for name in (head, embedding))
    return None if torch.equal(first, second) else (head, embedding)


def _first_rows(file: Path, name: str) -> torch.Tensor:
    with safe_open(file, framework="pt") as tensors:
        rows: torch.Tensor = tensors.get_slice(name)[:NUM_ROW]
        return rows.float()


def whole_numbers(folder: Path) -> str:
    """The first matrix in a folder's .safetensors files that is stored as whole numbers; empty if none is."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (no mapping)
                part = tensors.get_slice(name)
                if part.get_dtype()[0] in "IU" and len(part.get_shape()) > 1:
                    return str(name)
    return ""
