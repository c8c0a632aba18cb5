"""Low-rank adapters on a frozen model (LoRA, arXiv 2106.09685), made by peft."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from rlanything.weights.lora import LORA_A, LORA_B

ADAPTER = "default"  # peft's name for a model's only adapter
BASE_LAYER = ".base_layer"  # peft adds it to the name of each module that it wraps


def add_adapters(lm: nn.Module, rank: int, alpha: float, seed: int, without: nn.Module | None = None) -> None:
    """Add trainable float32 adapters to every linear layer except the head and those of the part `without`, and freeze
    the model's own weights.

    Equal seeds give equal adapters.
    """
    from peft import LoraConfig, inject_adapter_in_model  # slow to import, and few runs train adapters
    from peft.tuners.tuners_utils import cast_adapter_dtype

    left_out = [name for name, module in lm.named_modules() if module is without]
    excluded = f"{re.escape(left_out[0])}\\..*" if left_out else None
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]
        target_modules="all-linear",
        exclude_modules=excluded,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, lm, adapter_name=ADAPTER)
    cast_adapter_dtype(lm, ADAPTER)  # to float32


@contextmanager
def adapters_disabled(lm: nn.Module) -> Iterator[None]:
    """Compute without the adapters inside the block, as the frozen model does."""
    layers: list[Any] = [module for module in lm.modules() if _is_adapted(module)]
    for layer in layers:
        layer._disable_adapters = True  # enable_adapters(False) would also clear requires_grad, which DeepSpeed needs
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def _is_adapted(module: nn.Module) -> bool:
    """True for peft's LoraLayer."""
    return hasattr(module, "lora_A") and hasattr(module, "base_layer")


def adapter_parameters(lm: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """(name, parameter) of every adapter: MODULE.lora_A [rank, in] and MODULE.lora_B [out, rank]."""
    for name, module in lm.named_modules():
        if _is_adapted(module):
            a: Any = module.lora_A[ADAPTER]
            b: Any = module.lora_B[ADAPTER]
            yield name + LORA_A, a.weight
            yield name + LORA_B, b.weight
