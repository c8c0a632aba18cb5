"""The learner's weights under their Hugging Face names: for engines, and as a folder that transformers can load.

ZeRO-3 gathers each weight from all ranks while one iterates, so every rank has to iterate over all of them.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlanything.config.schema import LearnerConfig
from rlanything.learner.adapters import BASE_LAYER, adapter_parameters
from rlanything.weights.files import local_folder
from rlanything.weights.lora import LORA_B, merged

GENERATION_CONFIG = "generation_config.json"
PROCESSORS = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")


def trained_weights(lm: nn.Module, config: LearnerConfig, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor of `dtype`) of every weight of the model, tied weights once, or of its adapters.

    An adapter's lora_B includes the factor lora_alpha / lora_rank. A tensor may share the parameter's memory, and is
    valid until the next one is asked for.
    """
    parameters = adapter_parameters(lm) if config.lora_rank else lm.named_parameters()
    for name, tensor in _gathered(parameters, config.zero_stage):
        if config.lora_rank and name.endswith(LORA_B):
            tensor = tensor * (config.lora_alpha / config.lora_rank)
        yield name, tensor.to(dtype)


def frozen_weights(lm: nn.Module, config: LearnerConfig) -> Iterator[tuple[str, Tensor]]:
    """(name, float32 tensor) of every weight that the adapters are added to."""
    frozen = ((name.replace(BASE_LAYER, ""), p) for name, p in lm.named_parameters() if not p.requires_grad)
    return ((name, tensor.float()) for name, tensor in _gathered(frozen, config.zero_stage))


def export(folder: Path, lm: Any, tokenizer: Any, config: LearnerConfig, dtype: torch.dtype) -> None:
    """Write model (weights of `dtype`, adapters merged) and tokenizer in Hugging Face format, on rank 0.

    All ranks must call this. The folder appears by rename, and replaces an older one.
    """
    weights = trained_weights(lm, config, torch.float32)
    if config.lora_rank:
        adapters = [(name, tensor.clone()) for name, tensor in weights]
        weights = merged(frozen_weights(lm, config), adapters)
    writes = dist.get_rank() == 0
    state = {name: tensor.to("cpu", dtype, copy=True) for name, tensor in weights if writes}
    if writes:
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        _save_model(part, lm, state, dtype)
        tokenizer.save_pretrained(part)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(part, folder)
    dist.barrier()


def _save_model(folder: Path, lm: Any, state: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Save weights and configuration. transformers reads generation configs that it refuses to write: one is copied,
    and so are the configurations of processors of images."""
    files = local_folder(lm.name_or_path)
    source, generation_config = files / GENERATION_CONFIG, lm.generation_config
    if source.is_file():
        lm.generation_config = type(generation_config)()
    try:
        lm.save_pretrained(folder, state_dict=state)
    finally:
        lm.generation_config = generation_config
    if source.is_file():
        shutil.copyfile(source, folder / GENERATION_CONFIG)
    for name in PROCESSORS:
        if (files / name).is_file():
            shutil.copyfile(files / name, folder / name)
    # save_pretrained states the type of the parameters, which is float32.
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(written | {"dtype": str(dtype).removeprefix("torch.")}, indent=2))


def _gathered(parameters: Iterable[tuple[str, nn.Parameter]], zero_stage: int) -> Iterator[tuple[str, Tensor]]:
    import deepspeed  # after `start_deepspeed` has chosen the accelerator

    for name, parameter in parameters:
        with deepspeed.zero.GatheredParameters([parameter], enabled=zero_stage == 3):
            yield name, parameter.detach()
