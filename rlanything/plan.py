"""`dry_run=true`: the resolved configuration, the device plan, the memory estimate and the batch arithmetic."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf

from rlanything.config import Config, ConfigError, LearnerConfig, ModelConfig
from rlanything.precision import resolve_dtype
from rlanything.runs.progress import Progress

GIB = 2**30
BYTES = {"bfloat16": 2, "float32": 4}
_SIZE_IN_NAME = re.compile(r"(\d+(?:\.\d+)?)\s*([BM])\b", re.IGNORECASE)


@dataclass(frozen=True)
class ModelSize:
    """Parameters, and where the number comes from."""

    parameters: float
    source: str


def model_size(model: ModelConfig) -> ModelSize:
    """From the model's own files where they are here, else from its name. Raises ConfigError where neither tells."""
    folder = Path(model.path)
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return ModelSize(sum(_tensor_elements(f) for f in files), "its files")
    match = _SIZE_IN_NAME.search(folder.name)
    if match:
        return ModelSize(float(match[1]) * (1e9 if match[2].upper() == "B" else 1e6), "its name")
    raise ConfigError(
        f"model {model.path}: no such folder, and its name does not tell its size (such as 7B); check the path"
    )


def _tensor_elements(file: Path) -> int:
    """Elements of a .safetensors, from its header alone."""
    with open(file, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    total = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            elements = 1
            for n in tensor["shape"]:
                elements *= n
            total += elements
    return total


def learner_bytes(parameters: float, config: LearnerConfig, world: int, on_accelerator: bool = True) -> float:
    """Bytes a device holds for a learner, activations aside, by ZeRO stage (arXiv 1910.02054, section 5)."""
    weights, gradients, states = 4 * parameters, 4 * parameters, 2 * 4 * parameters
    weights += 2 * parameters if resolve_dtype(config.dtype, on_accelerator) == "bfloat16" else 0
    if config.offload:
        states = 0
    shard = [1, world, world, world]
    total = states / shard[config.zero_stage]
    total += gradients / (world if config.zero_stage >= 2 else 1)
    total += weights / (world if config.zero_stage >= 3 else 1)
    if config.kl_beta and config.kl_reference == "initial":
        total += 4 * parameters  # the frozen reference is float32 too
    return total


def print_plan(config: Config, progress: Progress) -> None:
    """Print everything, start nothing."""
    progress.line(OmegaConf.to_yaml(OmegaConf.structured(config)).rstrip())
    world = max(1, config.experiment.num_node * config.experiment.num_device)
    on_accelerator = config.experiment.num_device > 0
    device = f"{world} accelerators" if config.experiment.num_device else "the CPU"
    rows = []
    total = 0.0
    for role in ("policy", "reward", "rewriter"):
        if (role == "reward" and not config.reward.num_evaluation) or (
            role == "rewriter" and not config.adaptation.enabled
        ):
            continue
        size = model_size(getattr(config.model, role))
        engine = getattr(config.engine, role)
        engine_bytes = BYTES[resolve_dtype(engine.dtype, on_accelerator)]
        engine_gib = size.parameters * engine_bytes / engine.tensor_parallel_size / GIB
        learner_gib = 0.0
        if role != "rewriter":
            learner_gib = learner_bytes(size.parameters, getattr(config.training, role), world, on_accelerator) / GIB
        total += engine_gib + learner_gib
        rows.append([role, f"{size.parameters / 1e9:.3g} B ({size.source})", f"{engine_gib:.2f}", f"{learner_gib:.2f}"])
    progress.table(
        f"Plan: {config.experiment.num_node} node(s), {device}; GiB per device",
        ["role", "parameters", "engine weights", "learner (without activations)"],
        rows,
    )
    rollout, reward = config.rollout, config.reward
    episodes = rollout.num_trial * rollout.num_rollout_per_trial
    turns = episodes * rollout.max_interaction_step
    progress.line(f"all roles together: {total:.2f} GiB per device, KV caches and activations aside")
    progress.line(
        f"a step: {rollout.num_trial} tasks (and up to {config.adaptation.max_candidate} candidates) x "
        f"{rollout.num_rollout_per_trial} episodes = {episodes} episodes, at most {turns} turns, "
        f"{turns * reward.num_evaluation} evaluations, {turns * rollout.max_response_tokens / 1e6:.2f} M policy tokens"
    )
    updates = config.training.policy.num_update * config.training.policy.num_epoch
    progress.line(
        f"the run: {config.experiment.total_step} steps, {config.experiment.total_step * updates} policy updates; "
        "nothing was started"
    )
