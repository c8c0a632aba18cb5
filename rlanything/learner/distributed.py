"""DeepSpeed: its start in this process, its configuration, the optimizer that it drives, and the learning rate."""

import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d

from rlanything.config.schema import LearnerConfig
from rlanything.errors import LearnerError

INTERFACE = "GLOO_SOCKET_IFNAME"  # which network gloo uses


def start_deepspeed(log_path: Path | None, timeout_s: float = 1800.0, joins: bool = False) -> ModuleType:
    """Import and start DeepSpeed, with its log in `log_path`, or nowhere if None. It compiles nothing.

    A rank that `joins` others finds them by RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Else this is a
    single process, whatever a launcher has left in these variables; its group has an in-process store and opens no
    port. The first call sets how long [s] a rank waits for the others, also in the groups that DeepSpeed makes for each
    learner.
    """
    # Set before the import, which otherwise probes for accelerators and warns on stdout if it finds none.
    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"  # whatever another machine's set-up has left in it
    os.environ.setdefault("DS_ACCELERATOR", "cuda")
    if not joins and not (dist.is_initialized() and dist.get_world_size() > 1):
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}  # DeepSpeed reads them again
    import deepspeed

    logger = logging.getLogger("DeepSpeed")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.addHandler(logging.FileHandler(log_path) if log_path else logging.NullHandler())

    if deepspeed.get_accelerator().device_name() == "cpu":
        # Compiling this op takes a minute, and only tensor-parallel inference on CPUs uses its all-reduce.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if not dist.is_initialized():
        # New groups take torch's default timeout, not that of the group that they are made from.
        distributed_c10d.default_pg_timeout = distributed_c10d.default_pg_nccl_timeout = timedelta(seconds=timeout_s)
        try:
            if joins:
                dist.init_process_group()
            else:
                dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
        except RuntimeError as error:
            if (interface := os.environ.get(INTERFACE)) and interface in str(error):
                raise LearnerError(f"{INTERFACE}={interface}: this machine has no such network; unset it") from error
            raise
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
    return deepspeed


def engine_config(config: LearnerConfig) -> dict[str, Any]:
    """DeepSpeed's configuration. The number of micro-batches varies, so the learner decides when to step."""
    zero: dict[str, Any] = {"stage": config.zero_stage}
    if config.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        # At stage 0 DeepSpeed does not report the norm that it clips, so the optimizer clips there (`make_optimizer`).
        "gradient_clipping": config.max_grad_norm if config.zero_stage else 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1 << 60,
        "timers": {"throughput": {"enabled": False}},  # unused, and it waits for the device in every pass
    }


def make_optimizer(params: list[nn.Parameter], config: LearnerConfig, on_gpu: bool) -> torch.optim.Optimizer:
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
            optimizer._global_grad_norm = float(nn.utils.clip_grad_norm_(params, config.max_grad_norm))

        optimizer.register_step_pre_hook(clip)
    return optimizer


def lr_factor(update: int, total_update: int, config: LearnerConfig) -> float:
    """The factor of the learning rate in update number `update`, from 0: a linear warm-up, then the schedule.

    The linear and cosine schedules reach 0 at `total_update` and stay there.
    """
    if update < config.warmup_update:
        return (update + 1) / config.warmup_update
    if config.schedule == "constant":
        return 1.0
    span = max(1, total_update - config.warmup_update)
    done = min(1.0, (update - config.warmup_update) / span)
    return 1.0 - done if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))


@contextmanager
def partitioned(config: LearnerConfig) -> Iterator[None]:
    """Under ZeRO-3, partition each tensor over the ranks as transformers loads it inside the block."""
    if config.zero_stage != 3:
        yield
        return
    from transformers.integrations.deepspeed import HfDeepSpeedConfig, unset_hf_deepspeed_config

    setting = HfDeepSpeedConfig(engine_config(config))  # noqa: F841 - transformers keeps only a weak reference to it
    try:
        yield
    finally:
        unset_hf_deepspeed_config()
