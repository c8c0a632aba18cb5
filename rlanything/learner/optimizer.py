"""The optimizer where DeepSpeed brings none of its own (ZeRO 0), and the learning rate's schedule."""

from __future__ import annotations

import math

import torch

from rlanything.config.schema import LearnerConfig


class ClippedAdamW(torch.optim.AdamW):
    """AdamW that clips the gradient's norm and keeps it where DeepSpeed's engine looks for it."""

    def __init__(self, params: list[torch.nn.Parameter], max_norm: float, **kwargs: object) -> None:
        super().__init__(params, **kwargs)  # type: ignore[arg-type]
        self.max_norm = max_norm
        self._global_grad_norm = 0.0

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Clip, then step."""
        params = [p for group in self.param_groups for p in group["params"]]
        self._global_grad_norm = float(torch.nn.utils.clip_grad_norm_(params, self.max_norm))
        super().step(closure)


def lr_factor(update: int, total_update: int, config: LearnerConfig) -> float:
    """What the learning rate of update number `update` (from 0) is multiplied by: warm-up, then the schedule.

    linear and cosine reach 0 at `total_update` and stay there.
    """
    if update < config.warmup_update:
        return (update + 1) / config.warmup_update
    if config.schedule == "constant":
        return 1.0
    span = max(1, total_update - config.warmup_update)
    done = min(1.0, (update - config.warmup_update) / span)
    return 1.0 - done if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
