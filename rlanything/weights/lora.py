"""Low-rank adapters (LoRA, arXiv 2106.09685) between learner and engines.

The learner sends only its adapters: MODULE.lora_A [rank, in] and MODULE.lora_B [out, rank], which includes the scale.
Engines add lora_B @ lora_A to the weights in the model's files, so generation costs nothing more. The sum is rounded to
the engine's dtype; importance weights correct that along with the other differences between learner and engine.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

import torch

from rlanything.errors import ClearError

LORA_A, LORA_B = ".lora_A", ".lora_B"

Named = Iterable[tuple[str, torch.Tensor]]


class AdapterError(ClearError, ValueError):
    """Adapters that do not fit the model; the message names them."""


def merged(base: Named, adapters: Named) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights of `base` with the adapters added, in the dtypes of `base`.

    Raises AdapterError after the last weight if an adapter belongs to none of them.
    """
    left = dict(adapters)
    for name, weight in base:
        module = name.removesuffix(".weight")
        if module + LORA_A in left:
            a, b = (left.pop(module + part).to(weight.device, torch.float32) for part in (LORA_A, LORA_B))
            weight = (weight.float() + b @ a).to(weight.dtype)
        yield name, weight
    if left:
        raise AdapterError(f"found adapters of weights that the model does not have: {', '.join(sorted(left)[:4])}")


def with_base(tensors: Named, base: Callable[[list[str]], Named]) -> tuple[Named, dict[str, torch.Tensor]]:
    """All weights of the model that `tensors` describe, and the adapters among them.

    `tensors` are either adapters only, which are merged into what `base` returns, given the names of the weights that
    they change; or all weights.
    """
    tensors = iter(tensors)
    first = list(islice(tensors, 1))
    tensors = chain(first, tensors)
    if not (first and first[0][0].endswith(LORA_A)):
        return tensors, {}
    adapters = dict(tensors)
    adapted = [name.removesuffix(LORA_A) + ".weight" for name in adapters if name.endswith(LORA_A)]
    return merged(base(adapted), adapters.items()), adapters
