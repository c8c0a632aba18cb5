"""Low-rank adapters on a model that stays frozen (LoRA, arXiv 2106.09685): peft makes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from rlanything.weights.lora import LORA_A, LORA_B

NAME = "default"  # peft's, of the only adapter
BASE = ".base_layer"  # what peft adds to the name of a module that it wraps


def add_adapters(lm: nn.Module, rank: int, alpha: float, seed: int) -> None:
    """Wrap every linear layer but the head; only the adapters, in float32, are left to train. Same seed, same start."""
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear")  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, lm, adapter_name=NAME)
    for parameter in lm.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


@contextmanager
def without_adapters(lm: nn.Module) -> Iterator[None]:
    """Within the block the model is the frozen one."""
    layers = [module for module in lm.modules() if isinstance(module, LoraLayer)]
    for layer in layers:
        layer._disable_adapters = True  # not enable_adapters(False): that would make them untrainable for DeepSpeed
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def adapters(lm: nn.Module) -> Iterator[tuple[str, nn.Parameter, float]]:
    """(name as it travels, parameter, what it is to be multiplied by) of every one."""
    for name, module in lm.named_modules():
        if isinstance(module, LoraLayer):
            down: Any = module.lora_A[NAME]
            up: Any = module.lora_B[NAME]
            yield name + LORA_A, down.weight, 1.0
            yield name + LORA_B, up.weight, float(module.scaling[NAME])


def frozen(lm: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """(Hugging Face name, parameter) of the model's own weights."""
    for name, parameter in lm.named_parameters():
        if not parameter.requires_grad:
            yield name.replace(BASE, ""), parameter
