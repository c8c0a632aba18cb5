"""A digest of model weights that learner and engine both compute, to prove that they hold the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch

LM_HEAD = "lm_head.weight"
EMBEDDING = "embed_tokens.weight"


def checksum(tensors: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype) -> str:
    """Digest of named weights (Hugging Face names) as they look once cast to the engine's `dtype`.

    The order of `tensors` does not matter. An output head that equals the input embedding is left out, so that
    both sides agree whether or not they list tied weights twice. Names, shapes and bytes all count.
    Raises ValueError where a name comes twice. Cost: about 1 s per GB of weights at `dtype`.
    """
    digests: dict[str, bytes] = {}
    for name, tensor in tensors:
        if name in digests:
            raise ValueError(f"checksum: weight {name!r} was given twice; expected each name once")
        digests[name] = _digest(tensor.detach().to(device="cpu", dtype=dtype))
    embeddings = {digest for name, digest in digests.items() if name.endswith(EMBEDDING)}
    if digests.get(LM_HEAD) in embeddings:
        del digests[LM_HEAD]
    total = hashlib.blake2b(str(dtype).encode(), digest_size=16)
    for name in sorted(digests):
        total.update(name.encode() + b"\0" + digests[name])
    return total.hexdigest()


def _digest(tensor: torch.Tensor) -> bytes:
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    digest = hashlib.blake2b(repr(tuple(tensor.shape)).encode(), digest_size=16)
    digest.update(data.data)
    return digest.digest()
