"""The optimizer (AdamW) and the schedule of its learning rate."""

from __future__ import annotations

import math
from typing import Any

import torch

from rlanything.config.schema import LearnerConfig


def make_optimizer(params: list[torch.nn.Parameter], config: LearnerConfig, on_gpu: bool) -> torch.optim.Optimizer:
    """AdamW for DeepSpeed to drive. Without ZeRO it clips the gradient's norm itself, before each step."""
    optimizer = torch.optim.AdamW(
        params,
        lr=config.lr,
        betas=(config.betas[0], config.betas[1]),
        weight_decay=config.weight_decay,
        fused=on_gpu and not config.offload,  # one pass over memory instead of about twenty
    )
    if config.zero_stage == 0:

        def clip(optimizer: Any, args: Any, kwargs: Any) -> None:
            params = [p for group in optimizer.param_groups for p in group["params"]]
            # DeepSpeed's engine reports the norm that it finds under this name.
            optimizer._global_grad_norm = float(torch.nn.utils.clip_grad_norm_(params, config.max_grad_norm))

        optimizer.register_step_pre_hook(clip)
    return optimizer


def lr_factor(update: int, total_update: int, config: LearnerConfig) -> float:
    """The factor of the learning rate in update number `update`, counted from 0: a linear warm-up, then the schedule.

    The linear and cosine schedules reach 0 at `total_update` and stay there.
    """
    if update < config.warmup_update:
        return (update + 1) / config.warmup_update
    if config.schedule == "constant":
        return 1.0
    span = max(1, total_update - config.warmup_update)
    done = min(1.0, (update - config.warmup_update) / span)
    return 1.0 - done if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
