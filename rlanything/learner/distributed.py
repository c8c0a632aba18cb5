"""Starts torch.distributed and DeepSpeed for this process: quietly, and without compiling anything."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from rlanything.config.schema import LearnerConfig


def start_deepspeed(log_path: Path | None, timeout_s: float = 1800.0) -> ModuleType:
    """Import and start DeepSpeed; the process's log of it goes to `log_path`, nowhere where None, from here on.

    One process needs no rendezvous: its group lives in an in-process store, so no port is opened. Where a launcher
    has set WORLD_SIZE > 1, its RANK, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are used. A rank waits `timeout_s` of the
    first call for the others, in DeepSpeed's own groups too, which learners make later.
    """
    # Before the import: DeepSpeed probes for accelerators and warns on stdout where it finds none.
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed refuses to start without it
    import deepspeed

    logger = logging.getLogger("DeepSpeed")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.addHandler(logging.FileHandler(log_path) if log_path else logging.NullHandler())

    if deepspeed.get_accelerator().device_name() == "cpu":
        # The shared-memory all-reduce serves tensor-parallel inference on CPUs alone; building it takes a minute.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if not dist.is_initialized():
        # A group that is made of another, as DeepSpeed does, does not inherit its timeout: it takes torch's default.
        distributed_c10d.default_pg_timeout = distributed_c10d.default_pg_nccl_timeout = timedelta(seconds=timeout_s)
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
        else:
            dist.init_process_group()
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
    return deepspeed


def engine_config(config: LearnerConfig) -> dict[str, Any]:
    """DeepSpeed's configuration. Micro-batches vary in number, so the learner owns the accumulation boundary."""
    zero: dict[str, Any] = {"stage": config.zero_stage}
    if config.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        # At stage 0 the optimizer clips, since only there is DeepSpeed's norm not reported.
        "gradient_clipping": config.max_grad_norm if config.zero_stage else 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1 << 60,
        "timers": {"throughput": {"enabled": False}},  # nobody reads it, and it waits for the device in every pass
    }


@contextmanager
def partitioned(config: LearnerConfig) -> Iterator[None]:
    """With ZeRO-3, models that transformers loads within the block are in parts from the start: each tensor is shared
    out over the ranks as it comes, and only rank 0 reads the files. Nothing changes for other stages."""
    if config.zero_stage != 3:
        yield
        return
    from transformers.integrations.deepspeed import HfDeepSpeedConfig, unset_hf_deepspeed_config

    kept = HfDeepSpeedConfig(engine_config(config))  # transformers holds it weakly
    try:
        yield
    finally:
        unset_hf_deepspeed_config()
        del kept
