"""Estimate the memory that engines and learners take of an accelerator, from their numbers of parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from rlanything.config.roles import LEARNERS, Learner, Role
from rlanything.config.schema import Config, EngineConfig, LearnerConfig, ModelConfig
from rlanything.errors import ConfigError
from rlanything.plan.placement import Placement, route
from rlanything.weights.precision import torch_dtype

GIB = 2**30
# A LoRA adapter of rank 1 has about ADAPTER_WIDTH * parameters^(2/3) parameters of its own: the inputs and outputs of
# all linear layers. Computed from the shapes of Qwen2.5, the factor is 0.89 at 0.5B, 0.65 at 7B and 0.71 at 14B.
ADAPTER_WIDTH = 0.9
_SIZE_IN_NAME = re.compile(r"(\d+(?:\.\d+)?)\s*([BM])\b", re.IGNORECASE)


@dataclass(frozen=True)
class ModelSize:
    """Number of parameters, and the source of that number."""

    parameters: float
    source: str


def model_size(model: ModelConfig) -> ModelSize:
    """Read it from the model's local files, else from its name. Raises ConfigError if neither tells."""
    files = sorted(_folder(model.path).glob("*.safetensors"))
    if files:
        return ModelSize(sum(_tensor_elements(f) for f in files), "its files")
    match = _SIZE_IN_NAME.search(Path(model.path).name)
    if match:
        return ModelSize(float(match[1]) * (1e9 if match[2].upper() == "B" else 1e6), "its name")
    raise ConfigError(
        f"model {model.path}: no such folder, and its name does not tell its size (such as 7B); check the path"
    )


def _folder(path: str) -> Path:
    """The folder of a model's files on this machine: its own, or the hub's cache. It may be missing."""
    folder = Path(path)
    if folder.is_dir():
        return folder
    try:
        return Path(snapshot_download(path, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return folder


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
    """Bytes that a device holds for a learner, without activations (ZeRO: arXiv 1910.02054, section 5).

    With LoRA these are the frozen weights in the forward pass's dtype, which also serve as the KL's reference, and the
    bytes of a learner that has the adapters alone.
    """
    if config.lora_rank:
        frozen = torch_dtype(config.dtype, on_accelerator).itemsize * parameters
        trained = config.model_copy(update={"lora_rank": 0, "kl_beta": 0.0})
        adapters = config.lora_rank * ADAPTER_WIDTH * parameters ** (2 / 3)
        return frozen / (world if config.zero_stage >= 3 else 1) + learner_bytes(
            adapters, trained, world, on_accelerator
        )
    weights, gradients, states = 4 * parameters, 4 * parameters, 2 * 4 * parameters
    if config.zero_stage:  # DeepSpeed's optimizer steps on a copy of this rank's part of the float32 weights
        states += 4 * parameters
    casts = 2 * parameters if torch_dtype(config.dtype, on_accelerator) is torch.bfloat16 else 0
    if config.zero_stage == 3 and config.gradient_checkpointing:
        casts = 0  # of a layer at a time; else the backward pass needs all of them, on every rank
    total = casts + (0 if config.offload else states / (world if config.zero_stage else 1))
    total += gradients / (world if config.zero_stage >= 2 else 1)
    total += weights / (world if config.zero_stage >= 3 else 1)
    if config.kl_beta and config.kl_reference == "initial":  # the frozen reference is float32 too
        total += 4 * parameters / (world if config.zero_stage >= 3 else 1)
    return total


def device_gib(
    config: Config, sizes: Mapping[Role, ModelSize], placement: Placement
) -> dict[tuple[int, int], dict[str, float]]:
    """GiB that each process takes of each accelerator: {(node, index): {process: GiB}}.

    A vLLM engine takes its share. The small engine computes on the CPU and takes nothing. A learner takes
    `learner_bytes`. An engine's weights are listed by themselves too if learners hand new ones over on the accelerator.
    Raises ConfigError if an engine's weights do not fit into its share."""
    world = max(1, len(placement.learners))
    learners = [role for role in sizes if role in LEARNERS and placement.learners]
    hand_over = any(route(config, placement, role).how == "ipc" for role in learners)
    needs: dict[tuple[int, int], dict[str, float]] = {}
    for role, size in sizes.items():
        on_accelerator = config.engine.of(role).kind == "vllm"
        share, weights = engine_gib(config, role, size) if on_accelerator else (0.0, 0.0)
        for slot in placement.engines[role]:
            for device in slot.devices:
                parts = needs.setdefault((slot.node, device), {})
                parts |= {f"{role} engine": share} | ({f"{role} engine's weights": weights} if hand_over else {})
    for slot in placement.learners:
        for device in slot.devices:
            for role in learners:
                gib = learner_bytes(sizes[role].parameters, config.training.of(role), world) / GIB
                needs.setdefault((slot.node, device), {})[f"{role} learner"] = gib
    return needs


def weights_gib(engine: EngineConfig, size: ModelSize, on_accelerator: bool) -> float:
    """GiB that an engine's weights take of each of its devices."""
    return size.parameters * torch_dtype(engine.dtype, on_accelerator).itemsize / engine.tensor_parallel_size / GIB


def engine_gib(config: Config, role: Role, size: ModelSize) -> tuple[float, float]:
    """GiB of a vLLM engine's share of an accelerator, and of its weights. Raises ConfigError if they do not fit."""
    engine, memory = config.engine.of(role), config.experiment.device_memory_gb
    weights = weights_gib(engine, size, on_accelerator=True)
    share: float = engine.gpu_memory_utilization * memory
    if weights >= share:
        raise ConfigError(
            f"engine.{role}.gpu_memory_utilization={engine.gpu_memory_utilization:g} of {memory:g} GiB is {share:.1f}, "
            f"and its weights take {weights:.1f}; raise it, or engine.{role}.tensor_parallel_size"
        )
    return share, weights


def check_memory(config: Config, needs: dict[tuple[int, int], dict[str, float]]) -> str:
    """Describe the fullest accelerator in one line. Raises ConfigError, naming its largest part, if it cannot fit.

    Engines and learners that share an accelerator take turns: it holds all its engines, or one learner. The learner has
    the engines' weights beside it if it hands them new ones.
    """

    def turns(parts: dict[str, float]) -> list[dict[str, float]]:
        """The sets of parts that the accelerator holds at one time."""
        weights = {name: gib for name, gib in parts.items() if name.endswith("weights")}
        engines = {name: gib for name, gib in parts.items() if name.endswith("engine")}
        learners = [{name: gib} | weights for name, gib in parts.items() if name.endswith("learner")]
        return [engines, *learners] if engines and learners else [parts]

    found = [(where, parts) for where, all_parts in needs.items() for parts in turns(all_parts)]
    (node, device), parts = max(found, key=lambda item: sum(item[1].values()))
    total, limit = sum(parts.values()), config.experiment.device_memory_gb
    told = " + ".join(f"{name} {gib:.1f}" for name, gib in parts.items())
    line = f"the fullest accelerator (node {node}, number {device}): {told} = {total:.1f} of {limit:g} GiB"
    if total > limit:
        largest = max(parts, key=lambda name: parts[name])
        role, ways = largest.split()[0], list[str]()
        if largest.endswith("learner"):
            ways = _smaller_learner(config, next(learner for learner in LEARNERS if learner == role))
        elif largest.endswith("engine"):
            ways = [f"lower engine.{role}.gpu_memory_utilization"]
        else:
            ways = [f"raise engine.{role}.tensor_parallel_size"]
        if any(name.endswith("weights") for name in parts):
            ways.append("set cluster.weight_transfer=store")
        raise ConfigError(f"{line}: the {largest} is too large; {', or '.join(ways)}")
    return line


def _smaller_learner(config: Config, role: Learner) -> list[str]:
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
