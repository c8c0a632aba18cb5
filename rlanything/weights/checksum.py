"""Digests: of model weights, which learner and engine both compute, to prove that they hold the same ones; and of what
a checkpoint's files hold, to prove that they are read as they were written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch
from blake3 import blake3

LM_HEAD = "lm_head.weight"
EMBEDDING = "embed_tokens.weight"
THREADS_FROM = 1 << 20  # bytes from which several threads hash faster than one


class Digest:
    """Of named weights (Hugging Face names), one at a time, as they look once cast to the engine's `dtype`.

    Their order does not matter. An output head that equals the input embedding is left out, so that both sides agree
    whether or not they list tied weights twice. Names, shapes and bytes all count. BLAKE3, for the time of it is
    part of every step (`benchmarks/weight_sync.py` prints GB/s).
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._of: dict[str, bytes] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Raises ValueError where a name comes twice."""
        if name in self._of:
            raise ValueError(f"checksum: weight {name!r} was given twice; expected each name once")
        data = tensor.detach().to(device="cpu", dtype=self.dtype).contiguous().view(-1).view(torch.uint8).numpy()
        digest = blake3(
            repr(tuple(tensor.shape)).encode(), max_threads=blake3.AUTO if data.nbytes > THREADS_FROM else 1
        )
        self._of[name] = digest.update(data.data).digest()

    def hexdigest(self) -> str:
        """Of all that was added."""
        of = dict(self._of)
        if of.get(LM_HEAD) in {digest for name, digest in of.items() if name.endswith(EMBEDDING)}:
            del of[LM_HEAD]
        total = blake3(str(self.dtype).encode())
        for name in sorted(of):
            total.update(name.encode() + b"\0" + of[name])
        return total.hexdigest(length=16)


def checksum(tensors: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype) -> str:
    """The digest of all of them. Raises ValueError where a name comes twice."""
    digest = Digest(dtype)
    for name, tensor in tensors:
        digest.add(name, tensor)
    return digest.hexdigest()


def sealed(state: dict[str, Any]) -> str:
    """JSON of it with a checksum of its own."""
    plain = json.loads(json.dumps(state))  # as it will be read: every key a string
    return json.dumps(plain | {"checksum": _of_json(plain)})


def unsealed(text: str) -> dict[str, Any]:
    """What `sealed` was given. Raises ValueError where a character has changed since, KeyError where it never was."""
    state: dict[str, Any] = json.loads(text)
    if state.pop("checksum") != _of_json(state):
        raise ValueError("its content does not have the checksum that it was written with")
    return state


def _of_json(state: dict[str, Any]) -> str:
    return blake3(json.dumps(state, sort_keys=True).encode()).hexdigest(length=16)
