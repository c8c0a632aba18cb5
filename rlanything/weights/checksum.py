"""Checksums of model weights, which prove that learner and engine hold the same ones, and of a checkpoint's files.

The hash function is BLAKE3, as every training step hashes all weights (`benchmarks/weight_sync.py` prints GB/s).
"""

import json
from collections.abc import Iterable
from typing import Any

import torch
from blake3 import blake3

LM_HEAD = "lm_head.weight"
EMBEDDING = "embed_tokens.weight"
THREADS_FROM = 1 << 20  # bytes of a tensor from which several threads hash faster than one


class Digest:
    """Computes the checksum of named weights (Hugging Face names), one weight at a time.

    It covers names, shapes and bytes after a cast to the engine's `dtype`, in any order of the weights. An output head
    that equals the input embedding is left out, because some sides list tied weights once and others twice.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._digests: dict[str, bytes] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Add a weight. Raises ValueError if its name was added before."""
        if name in self._digests:
            raise ValueError(f"checksum: found weight {name!r} twice, expected each name once")
        data = tensor.detach().to(device="cpu", dtype=self.dtype).contiguous().view(-1).view(torch.uint8).numpy()
        max_threads = blake3.AUTO if data.nbytes > THREADS_FROM else 1
        digest = blake3(repr(tuple(tensor.shape)).encode(), max_threads=max_threads)
        self._digests[name] = digest.update(data.data).digest()

    def hexdigest(self) -> str:
        """The checksum of all weights added so far: 32 hexadecimal digits."""
        embeddings = [digest for name, digest in self._digests.items() if name.endswith(EMBEDDING)]
        total = blake3(str(self.dtype).encode())
        for name, digest in sorted(self._digests.items()):
            if name != LM_HEAD or digest not in embeddings:
                total.update(name.encode() + b"\0" + digest)
        return total.hexdigest(length=16)


def checksum(tensors: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype) -> str:
    """The `Digest` of all `tensors`. Raises ValueError if a name comes twice."""
    digest = Digest(dtype)
    for name, tensor in tensors:
        digest.add(name, tensor)
    return digest.hexdigest()


def sealed(state: dict[str, Any]) -> str:
    """JSON of `state` that includes a checksum, for `unsealed`."""
    plain = json.loads(json.dumps(state))  # turns keys into strings, as `unsealed` will find them
    return json.dumps(plain | {"checksum": _of_json(plain)})


def unsealed(text: str) -> dict[str, Any]:
    """The state in a text that `sealed` wrote. Raises ValueError if it has changed, KeyError if it has no checksum."""
    state: dict[str, Any] = json.loads(text)
    if state.pop("checksum") != _of_json(state):
        raise ValueError("its content does not match the checksum that it was written with")
    return state


def _of_json(state: dict[str, Any]) -> str:
    return blake3(json.dumps(state, sort_keys=True).encode()).hexdigest(length=16)
