"""Estimate the memory that engines and learners take of an accelerator, from their numbers of parameters."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from rlanything.config.schema import Config, LearnerConfig, ModelConfig
from rlanything.config.section import Learner, Role
from rlanything.errors import ConfigError
from rlanything.plan.activations import activation_bytes, model_shape, transfer_bytes
from rlanything.plan.models import described_size
from rlanything.plan.plan import Plan
from rlanything.weights.files import check_files, local_folder, tensor_shapes
from rlanything.weights.precision import torch_dtype

GIB = 2**30
# A LoRA adapter of rank 1 has about ADAPTER_WIDTH * parameters^(2/3) parameters of its own: the inputs and outputs of
# all linear layers. Computed from the shapes of Qwen2.5, the factor is 0.89 at 0.5B, 0.65 at 7B and 0.71 at 14B.
ADAPTER_WIDTH = 0.9
_SIZE_IN_NAME = re.compile(r"(\d+(?:\.\d+)?)\s*([BM])\b", re.IGNORECASE)

ENGINE, WEIGHTS, LEARNER = "engine", "engine's weights", "learner"
ACTIVATIONS, TRANSFER = "activations", "transfer"
Parts = dict[tuple[Role, str], float]
"""GiB of what an accelerator holds: a role's ENGINE, the WEIGHTS of that engine, its LEARNER, and what that takes while
it computes (ACTIVATIONS) or hands over new weights (TRANSFER)."""


@dataclass(frozen=True)
class ModelSize:
    """Number of parameters, and the source of that number."""

    parameters: float
    source: str


def model_size(model: ModelConfig) -> ModelSize:
    """Read it from the safetensors in a model's folder, else from config.json there or in the hub's cache, else from
    its name. Raises ConfigError if nothing tells the size, and ModelError."""
    folder = Path(model.path)
    if folder.is_dir():
        check_files(folder)
        if files := sorted(folder.glob("*.safetensors")):
            return ModelSize(sum(math.prod(shape) for f in files for shape in tensor_shapes(f).values()), "its files")
    if (local_folder(model.path) / "config.json").is_file():
        return ModelSize(described_size(model), "config.json")
    match = _SIZE_IN_NAME.search(Path(model.path).name)
    if match:
        return ModelSize(float(match[1]) * (1e9 if match[2].upper() == "B" else 1e6), "its name")
    what = "has no *.safetensors" if folder.is_dir() else "is a file" if folder.is_file() else "no such folder"
    raise ConfigError(f"model {model.path}: {what}, and its name does not tell its size (such as 7B); check the path")


def engine_gib(config: Config, role: Role, size: ModelSize) -> tuple[float, float]:
    """GiB of an engine's weights and of its KV cache, on each of its devices."""
    engine, memory = config.engine.of(role), config.experiment.device_memory_gb
    on_accelerator = config.experiment.num_device > 0 and engine.kind == "vllm"
    weights = size.parameters * torch_dtype(engine.dtype, on_accelerator).itemsize / engine.tensor_parallel_size / GIB
    if not on_accelerator:
        return weights, engine.kv_cache_gb if engine.kind == "vllm" else 0.0
    return weights, max(0.0, engine.gpu_memory_utilization * memory - weights)


def copied_gib(plan: Plan, role: Role, size: ModelSize) -> float:
    """GiB of the copy that the small engine keeps of weights that adapters change, for the next adapters."""
    config, engine = plan.config, plan.config.engine.of(role)
    if role not in plan.learners or engine.kind != "transformers" or not config.training.of(role).lora_rank:
        return 0.0
    shape = model_shape(config.model.of(role), size.parameters)
    return shape.adapted(config.training.of(role).train_vision) * torch_dtype(engine.dtype, False).itemsize / GIB


def engine_faults(config: Config, sizes: Mapping[Role, ModelSize]) -> Iterator[str]:
    """Name the engines whose weights leave nothing of vLLM's share of an accelerator."""
    memory = config.experiment.device_memory_gb
    for role, size in sizes.items():
        (weights, cache), share = engine_gib(config, role, size), config.engine.of(role).gpu_memory_utilization
        if config.experiment.num_device and config.engine.of(role).kind == "vllm" and not cache:
            yield (
                f"engine.{role}.gpu_memory_utilization={share:g} of {memory:g} GiB is {share * memory:.1f}, and its "
                f"weights take {weights:.1f}; raise it, or engine.{role}.tensor_parallel_size"
            )


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


def learner_gib(plan: Plan, role: Learner, size: ModelSize) -> dict[str, float]:
    """GiB of a role's LEARNER on each of its devices, and of what it takes besides, by kind."""
    config, on_accelerator = plan.config, plan.config.experiment.num_device > 0
    training, shape = config.training.of(role), model_shape(config.model.of(role), size.parameters)
    held = learner_bytes(size.parameters, training, len(plan.placement.learners), on_accelerator)
    return {
        LEARNER: held / GIB,
        ACTIVATIONS: activation_bytes(shape, training, on_accelerator) / GIB,
        TRANSFER: transfer_bytes(shape) / GIB,
    }


def device_gib(plan: Plan, sizes: Mapping[Role, ModelSize]) -> dict[tuple[int, int], Parts]:
    """The parts that each accelerator holds at any time, by (node, index).

    A vLLM engine takes its share. The small engine computes on the CPU and takes nothing. An engine's weights are
    listed by themselves too if learners hand new ones over on the accelerator.
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
        parts = learner_gib(plan, role, sizes[role])
        for slot in placement.learners:
            for device in slot.devices:
                needs[slot.node, device] |= {(role, kind): gib for kind, gib in parts.items()}
    return needs


def check_memory(config: Config, needs: Mapping[tuple[int, int], Parts]) -> str:
    """Describe the fullest accelerator in one line. Raises ConfigError, naming its largest part, if it cannot fit."""
    held = [(where, parts) for where, all_parts in needs.items() for parts in _turns(all_parts, _in_turn(needs))]
    (node, device), parts = max(held, key=lambda item: sum(item[1].values()))
    total, limit = sum(parts.values()), config.experiment.device_memory_gb
    summands = " + ".join(f"{role} {kind} {gib:.1f}" for (role, kind), gib in parts.items())
    line = f"the fullest accelerator (node {node}, number {device}): {summands} = {total:.1f} of {limit:g} GiB"
    if total > limit:
        role, kind = max(parts, key=lambda part: parts[part])
        if kind == ENGINE:
            remedies = [f"lower engine.{role}.gpu_memory_utilization"]
        elif kind == WEIGHTS:
            remedies = [f"raise engine.{role}.tensor_parallel_size"]
        else:
            remedies = _smaller_learner(config, role)
        for part, gib in parts.items():
            if part[1] == ACTIVATIONS and total - gib < limit:  # else no micro-batch is small enough
                remedies = [*_fewer_activations(config, part[0]), *(remedies if kind != ACTIVATIONS else [])]
        if any(part[1] == WEIGHTS for part in parts):
            remedies.append("set cluster.weight_transfer=store")
        are = "are" if kind in (WEIGHTS, ACTIVATIONS) else "is"
        raise ConfigError(f"{line}: the {role} {kind} {are} too large; {', or '.join(remedies)}")
    return line


def fits(config: Config, needs: Mapping[tuple[int, int], Parts], role: Role) -> bool:
    """True if a role's own parts fit an accelerator by themselves."""
    own = [{part: gib for part, gib in parts.items() if part[0] == role} for parts in needs.values()]
    turns = (sum(turn.values()) for parts in own if parts for turn in _turns(parts, _in_turn(needs)))
    return max(turns, default=0.0) <= config.experiment.device_memory_gb


def _in_turn(needs: Mapping[tuple[int, int], Parts]) -> bool:
    """True if engines and learners share an accelerator: learners then hold memory only while they work, everywhere."""
    return any({ENGINE, LEARNER} <= {kind for _, kind in parts} for parts in needs.values())


def _turns(parts: Parts, in_turn: bool) -> list[Parts]:
    """The sets of parts that the accelerator holds at one time.

    If engines and learners take turns, it holds all its engines, or one learner; else both learners. One learner at a
    time computes, or hands over new weights; then it has the weights of engines that share the accelerator beside it.
    """
    engines, weights, learners = (
        {part: gib for part, gib in parts.items() if part[1] == kind} for kind in (ENGINE, WEIGHTS, LEARNER)
    )
    turns = [engines] if engines else []
    for role, _ in learners:
        held = {part: gib for part, gib in learners.items() if not in_turn or part[0] == role}
        turns += [
            held | beside | {(role, kind): parts[role, kind]}
            for kind, beside in ((ACTIVATIONS, {}), (TRANSFER, weights))
            if (role, kind) in parts
        ] or [held | weights]
    return turns


def _fewer_activations(config: Config, role: Role) -> list[str]:
    way = (
        [] if config.training.of(role).gradient_checkpointing else [f"set training.{role}.gradient_checkpointing=true"]
    )
    return [*way, f"lower training.{role}.micro_batch_tokens"]


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
