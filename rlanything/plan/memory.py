"""Estimate the memory that engines and learners take of an accelerator, from their numbers of parameters."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from rlanything.config.schema import Config, LearnerConfig, ModelConfig
from rlanything.config.section import Role
from rlanything.errors import ConfigError
from rlanything.plan.plan import Plan
from rlanything.weights.files import check_files, local_folder, tensor_shapes
from rlanything.weights.precision import torch_dtype

GIB = 2**30
# A LoRA adapter of rank 1 has about ADAPTER_WIDTH * parameters^(2/3) parameters of its own: the inputs and outputs of
# all linear layers. Computed from the shapes of Qwen2.5, the factor is 0.89 at 0.5B, 0.65 at 7B and 0.71 at 14B.
ADAPTER_WIDTH = 0.9
_SIZE_IN_NAME = re.compile(r"(\d+(?:\.\d+)?)\s*([BM])\b", re.IGNORECASE)

ENGINE, WEIGHTS, LEARNER = "engine", "engine's weights", "learner"
Parts = dict[tuple[Role, str], float]
"""GiB of what an accelerator holds: a role's ENGINE, the WEIGHTS of that engine, and its LEARNER."""


@dataclass(frozen=True)
class ModelSize:
    """Number of parameters, and the source of that number."""

    parameters: float
    source: str


def model_size(model: ModelConfig) -> ModelSize:
    """Read it from the model's local files, else from its name. Raises ConfigError if neither tells, and ModelError."""
    folder = local_folder(model.path)
    if folder.is_dir():
        check_files(folder)
    if files := sorted(folder.glob("*.safetensors")):
        return ModelSize(sum(math.prod(shape) for f in files for shape in tensor_shapes(f).values()), "its files")
    match = _SIZE_IN_NAME.search(Path(model.path).name)
    if match:
        return ModelSize(float(match[1]) * (1e9 if match[2].upper() == "B" else 1e6), "its name")
    what = "has no *.safetensors" if folder.is_dir() else "is a file" if folder.is_file() else "no such folder"
    raise ConfigError(f"model {model.path}: {what}, and its name does not tell its size (such as 7B); check the path")


def engine_gib(config: Config, role: Role, size: ModelSize) -> tuple[float, float]:
    """GiB of an engine's weights and of its KV cache, on each of its devices.

    Raises ConfigError if the weights do not fit into vLLM's share of an accelerator.
    """
    engine, memory = config.engine.of(role), config.experiment.device_memory_gb
    on_accelerator = config.experiment.num_device > 0 and engine.kind == "vllm"
    weights = size.parameters * torch_dtype(engine.dtype, on_accelerator).itemsize / engine.tensor_parallel_size / GIB
    if not on_accelerator:
        return weights, engine.kv_cache_gb if engine.kind == "vllm" else 0.0
    share = engine.gpu_memory_utilization * memory
    if weights >= share:
        raise ConfigError(
            f"engine.{role}.gpu_memory_utilization={engine.gpu_memory_utilization:g} of {memory:g} GiB is {share:.1f}, "
            f"and its weights take {weights:.1f}; raise it, or engine.{role}.tensor_parallel_size"
        )
    return weights, share - weights


def learner_bytes(parameters: float, config: LearnerConfig, world: int, on_accelerator: bool = True) -> float:
    """Bytes that a device holds for a learner, without activations (ZeRO: arXiv 1910.02054, section 5).

    With LoRA these are the frozen weights in the forward pass's dtype, which also serve as the KL's reference, and the
    bytes of a learner that has the adapters alone.
    """
    dtype = torch_dtype(config.dtype, on_accelerator)

    def shards(stage: int) -> int:
        """Number of shards of what ZeRO divides among the ranks from this stage on."""
        return world if config.zero_stage >= stage else 1

    if config.lora_rank:
        adapters = config.lora_rank * ADAPTER_WIDTH * parameters ** (2 / 3)
        trained = config.model_copy(update={"lora_rank": 0, "kl_beta": 0.0})
        return dtype.itemsize * parameters / shards(3) + learner_bytes(adapters, trained, world, on_accelerator)
    weights = gradients = 4 * parameters
    total = weights / shards(3) + gradients / shards(2)
    if not config.offload:
        states = 2 * 4 * parameters
        if config.zero_stage:  # DeepSpeed's optimizer steps on a copy of this rank's part of the float32 weights
            states += 4 * parameters
        total += states / shards(1)
    # With checkpointing at stage 3 a layer is cast at a time; else the backward pass needs all casts, on every rank.
    if dtype is torch.bfloat16 and not (config.zero_stage == 3 and config.gradient_checkpointing):
        total += 2 * parameters
    if config.kl_beta and config.kl_reference == "initial":  # the frozen reference is float32 too
        total += 4 * parameters / shards(3)
    return total


def device_gib(plan: Plan, sizes: Mapping[Role, ModelSize]) -> dict[tuple[int, int], Parts]:
    """The parts that each accelerator holds at any time, by (node, index).

    A vLLM engine takes its share. The small engine computes on the CPU and takes nothing. An engine's weights are
    listed by themselves too if learners hand new ones over on the accelerator.
    Raises ConfigError if an engine's weights do not fit into its share.
    """
    config, placement = plan.config, plan.placement
    hand_over = any(route.how == "ipc" for route in plan.routes.values())
    needs: dict[tuple[int, int], Parts] = defaultdict(dict)
    for role, size in sizes.items():
        weights, cache = engine_gib(config, role, size) if config.engine.of(role).kind == "vllm" else (0.0, 0.0)
        for slot in placement.engines[role]:
            for device in slot.devices:
                needs[slot.node, device][role, ENGINE] = weights + cache
                if hand_over:
                    needs[slot.node, device][role, WEIGHTS] = weights
    for role in plan.learners:
        taken = learner_bytes(sizes[role].parameters, config.training.of(role), len(placement.learners)) / GIB
        for slot in placement.learners:
            for device in slot.devices:
                needs[slot.node, device][role, LEARNER] = taken
    return needs


def check_memory(config: Config, needs: Mapping[tuple[int, int], Parts]) -> str:
    """Describe the fullest accelerator in one line. Raises ConfigError, naming its largest part, if it cannot fit."""
    held = [(where, parts) for where, all_parts in needs.items() for parts in _turns(all_parts)]
    (node, device), parts = max(held, key=lambda item: sum(item[1].values()))
    total, limit = sum(parts.values()), config.experiment.device_memory_gb
    summands = " + ".join(f"{role} {kind} {gib:.1f}" for (role, kind), gib in parts.items())
    line = f"the fullest accelerator (node {node}, number {device}): {summands} = {total:.1f} of {limit:g} GiB"
    if total > limit:
        role, kind = max(parts, key=lambda part: parts[part])
        if kind == LEARNER:
            remedies = _smaller_learner(config, role)
        elif kind == ENGINE:
            remedies = [f"lower engine.{role}.gpu_memory_utilization"]
        else:
            remedies = [f"raise engine.{role}.tensor_parallel_size"]
        if any(part[1] == WEIGHTS for part in parts):
            remedies.append("set cluster.weight_transfer=store")
        raise ConfigError(f"{line}: the {role} {kind} is too large; {', or '.join(remedies)}")
    return line


def _turns(parts: Parts) -> list[Parts]:
    """The sets of parts that the accelerator holds at one time.

    Engines and learners that share it take turns: it holds all its engines, or one learner. The learner has the
    engines' weights beside it if it hands them new ones.
    """
    engines, weights, learners = (
        {part: gib for part, gib in parts.items() if part[1] == kind} for kind in (ENGINE, WEIGHTS, LEARNER)
    )
    if engines and learners:
        return [engines, *({part: gib} | weights for part, gib in learners.items())]
    return [parts]


def _smaller_learner(config: Config, role: Role) -> list[str]:
    """Ways to make a role's learner smaller that the configuration does not use yet."""
    experiment, cluster, training = config.experiment, config.cluster, config.training.of(role)
    ways = []
    if training.zero_stage < 3 and experiment.num_node * experiment.num_device > 1:
        ways.append(f"raise training.{role}.zero_stage")
    if not training.offload:
        ways.append(f"set training.{role}.offload=true" + ("" if training.zero_stage else " (with zero_stage>0)"))
    if cluster.num_learner:
        ways.append("raise cluster.num_learner")
    elif cluster.placement == "split":
        ways.append("lower engine.*.num_replica, for learners have what engines leave")
    return [*ways, "raise experiment.num_node"]
