"""LoRA (arXiv 2106.09685) where learner and engines meet: the learner sends adapters alone, engines add them to the
weights of the model's own files.

Adapters travel as (MODULE.lora_A, [rank, in]) and (MODULE.lora_B, [out, rank]), B with the scale in it. Merging them
costs no speed where tokens are made, and keeps one way to load weights. That the sum is rounded to the engine's dtype
is part of the mismatch that importance weights correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

import torch

from rlanything.errors import ClearError

LORA_A, LORA_B = ".lora_A", ".lora_B"

Named = Iterable[tuple[str, torch.Tensor]]


class AdapterError(ClearError, ValueError):
    """Adapters that do not fit the model: the message names them."""


def merged(base: Named, adapters: Named) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights of `base` with the adapters added, in the dtypes of `base`.

    Raises AdapterError, at the end, for adapters of weights that `base` does not have.
    """
    left = dict(adapters)
    for name, weight in base:
        module = name.removesuffix(".weight")
        if module + LORA_A in left:
            a, b = (left.pop(module + part).to(weight.device, torch.float32) for part in (LORA_A, LORA_B))
            weight = (weight.float() + b @ a).to(weight.dtype)
        yield name, weight
    if left:
        raise AdapterError(f"adapters of weights that the model does not have: {', '.join(sorted(left)[:4])}")


def with_base(tensors: Named, base: Callable[[], Named]) -> tuple[Named, dict[str, torch.Tensor]]:
    """All weights that `tensors` stand for, and the adapters among them: all are, or none."""
    tensors = iter(tensors)
    first = list(islice(tensors, 1))
    if not (first and first[0][0].endswith(LORA_A)):
        return chain(first, tensors), {}
    adapters = dict(chain(first, tensors))
    return merged(base(), adapters.items()), adapters
