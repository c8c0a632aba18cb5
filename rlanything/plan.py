"""`dry_run=true`: the resolved configuration, the device plan, the memory estimate and the batch arithmetic."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import OmegaConf

from rlanything.cluster.placement import Placement, place, route
from rlanything.config import Config, ConfigError, LearnerConfig, ModelConfig
from rlanything.domains.base import TaskError
from rlanything.domains.registry import make_domain
from rlanything.engines import check_model
from rlanything.precision import resolve_dtype
from rlanything.rules import LEARNERS, needs_cluster, training_roles
from rlanything.runs.progress import Progress

GIB = 2**30
BYTES = {"bfloat16": 2, "float32": 4}
# Parameters of adapters, a rank, by (a model's parameters)^(2/3): inputs and outputs of all its linear layers. By the
# shapes of Qwen2.5 it is 0.89 at 0.5B, 0.65 at 7B and 0.71 at 14B.
ADAPTER_WIDTH = 0.9
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
    """Bytes a device holds for a learner, activations aside, by ZeRO stage (arXiv 1910.02054, section 5).

    With LoRA the frozen weights in the forward pass's dtype, which are the KL's reference too, and a learner of the
    adapters.
    """
    if config.lora_rank:
        frozen = BYTES[resolve_dtype(config.dtype, on_accelerator)] * parameters
        trained = replace(config, lora_rank=0, kl_beta=0.0)
        adapters = config.lora_rank * ADAPTER_WIDTH * parameters ** (2 / 3)
        return frozen / (world if config.zero_stage >= 3 else 1) + learner_bytes(
            adapters, trained, world, on_accelerator
        )
    weights, gradients, states = 4 * parameters, 4 * parameters, 2 * 4 * parameters
    if config.zero_stage:  # DeepSpeed's optimizer steps on a copy of this rank's part of the float32 weights
        states += 4 * parameters
    casts = 2 * parameters if resolve_dtype(config.dtype, on_accelerator) == "bfloat16" else 0
    if config.zero_stage == 3 and config.gradient_checkpointing:
        casts = 0  # of a layer at a time; else the backward pass needs all of them, on every rank
    total = casts + (0 if config.offload else states / (world if config.zero_stage else 1))
    total += gradients / (world if config.zero_stage >= 2 else 1)
    total += weights / (world if config.zero_stage >= 3 else 1)
    if config.kl_beta and config.kl_reference == "initial":  # the frozen reference is float32 too
        total += 4 * parameters / (world if config.zero_stage >= 3 else 1)
    return total


def device_gib(
    config: Config, sizes: dict[str, ModelSize], placement: Placement
) -> dict[tuple[int, int], dict[str, float]]:
    """GiB that each process takes of each accelerator (node, index): a vLLM engine its share, the small engine, which
    computes on the CPU, nothing, a learner its weights and what belongs to these, activations aside. An engine's
    weights are told by themselves too where learners hand new ones over on the accelerator. Raises ConfigError where an
    engine's weights do not fit into its share."""
    world = max(1, len(placement.learners))
    learners = [role for role in sizes if role in LEARNERS and placement.learners]
    hand_over = needs_cluster(config) and any(route(config, placement, role).how == "ipc" for role in learners)
    needs: dict[tuple[int, int], dict[str, float]] = {}
    for role, size in sizes.items():
        on_accelerator = getattr(config.engine, role).kind == "vllm"
        share, weights = _engine_gib(config, role, size) if on_accelerator else (0.0, 0.0)
        for slot in placement.engines[role]:
            for device in slot.devices:
                parts = needs.setdefault((slot.node, device), {})
                parts |= {f"{role} engine": share} | ({f"{role} engine's weights": weights} if hand_over else {})
    for slot in placement.learners:
        for device in slot.devices:
            for role in learners:
                gib = learner_bytes(sizes[role].parameters, getattr(config.training, role), world) / GIB
                needs.setdefault((slot.node, device), {})[f"{role} learner"] = gib
    return needs


def _engine_gib(config: Config, role: str, size: ModelSize) -> tuple[float, float]:
    """Its share of an accelerator, and what its weights take of that."""
    engine, memory = getattr(config.engine, role), config.experiment.device_memory_gb
    weights = size.parameters * BYTES[resolve_dtype(engine.dtype, True)] / engine.tensor_parallel_size / GIB
    share: float = engine.gpu_memory_utilization * memory
    if weights >= share:
        raise ConfigError(
            f"engine.{role}.gpu_memory_utilization={engine.gpu_memory_utilization:g} of {memory:g} GiB is {share:.1f}, "
            f"and its weights take {weights:.1f}; raise it, or engine.{role}.tensor_parallel_size"
        )
    return share, weights


def check_memory(config: Config, needs: dict[tuple[int, int], dict[str, float]]) -> str:
    """The fullest accelerator in a line. Raises ConfigError naming its largest part where it cannot fit.

    Accelerators of a cluster that engines and learners share are handed over: the engines together, or one learner,
    with the engines' weights where it hands them new ones.
    """

    def turns(parts: dict[str, float]) -> list[dict[str, float]]:
        """Parts that are there at the same time."""
        weights = {name: gib for name, gib in parts.items() if name.endswith("weights")}
        engines = {name: gib for name, gib in parts.items() if name.endswith("engine")}
        learners = [{name: gib} | weights for name, gib in parts.items() if name.endswith("learner")]
        return [engines, *learners] if engines and learners and needs_cluster(config) else [parts]

    found = [(where, parts) for where, all_parts in needs.items() for parts in turns(all_parts)]
    (node, device), parts = max(found, key=lambda item: sum(item[1].values()))
    total, limit = sum(parts.values()), config.experiment.device_memory_gb
    told = " + ".join(f"{name} {gib:.1f}" for name, gib in parts.items())
    line = f"the fullest accelerator (node {node}, number {device}): {told} = {total:.1f} of {limit:g} GiB"
    if total > limit:
        largest = max(parts, key=lambda name: parts[name])
        remedies = {
            "learner": "raise training.*.zero_stage or cluster.num_learner, or set offload=true (with zero_stage>0)",
            "engine": f"lower engine.{largest.split()[0]}.gpu_memory_utilization",
            "weights": f"raise engine.{largest.split()[0]}.tensor_parallel_size",
        }
        remedy = remedies[largest.split()[-1]]
        if any(name.endswith("weights") for name in parts):
            remedy += ", or cluster.weight_transfer=store"
        raise ConfigError(f"{line}: the {largest} is too large; {remedy}, or use cluster.placement=split")
    return line


def print_plan(config: Config, progress: Progress) -> None:
    """Print everything of a training run, start nothing. Raises ConfigError where the plan cannot fit."""
    progress.line(OmegaConf.to_yaml(OmegaConf.structured(config)).rstrip())
    print_devices(config, training_roles(config), progress)
    rollout, reward = config.rollout, config.reward
    episodes = rollout.num_trial * rollout.num_rollout_per_trial
    turns = episodes * rollout.max_interaction_step
    judged = rollout.num_trial if config.dataset.domain == "coding" else turns  # tests are written for a whole task
    progress.line(
        f"a step: {rollout.num_trial} tasks (and up to {config.adaptation.max_candidate} candidates) x "
        f"{rollout.num_rollout_per_trial} episodes = {episodes} episodes, at most {turns} turns, "
        f"{judged * reward.num_evaluation} evaluations, {turns * rollout.max_response_tokens / 1e6:.2f} M policy tokens"
    )
    try:
        split, limit = config.dataset.train_split, config.dataset.num_task
        num = len(make_domain(config).tasks(split))
        progress.line(f"{split}: {num} tasks" + (f", {min(num, limit)} of them drawn" if limit else ""))
    except TaskError as error:  # the data may lie elsewhere than the plan is made
        progress.line(f"the run would stop here: {error}")
    updates = config.training.policy.num_update * config.training.policy.num_epoch
    progress.line(
        f"the run: {config.experiment.total_step} steps, {config.experiment.total_step * updates} policy updates; "
        "nothing was started"
    )


def print_devices(config: Config, roles: Sequence[str], progress: Progress, learns: bool = True) -> None:
    """Which models have which devices, and what these must hold. Raises ConfigError where that cannot fit."""
    experiment, on_accelerator = config.experiment, config.experiment.num_device > 0
    devices = experiment.num_node * experiment.num_device
    sizes = {role: model_size(getattr(config.model, role)) for role in roles}
    for role in roles:
        if Path(getattr(config.model, role).path).is_dir():  # a model of the hub is looked at when the run starts
            check_model(getattr(config.model, role), getattr(config.engine, role))
    placement = place(config, roles, learns)
    world, several = max(1, len(placement.learners)), learns and needs_cluster(config)
    rows = []
    for role, size in sizes.items():
        engine = getattr(config.engine, role)
        engine_bytes = BYTES[resolve_dtype(engine.dtype, on_accelerator and engine.kind == "vllm")]
        engine_gib = size.parameters * engine_bytes / engine.tensor_parallel_size / GIB
        training = getattr(config.training, role) if learns and role in LEARNERS else None
        learner = learner_bytes(size.parameters, training, world, on_accelerator) / GIB if training else 0.0
        replicas = f"{engine.num_replica} x {engine.tensor_parallel_size}"
        told = f"{size.parameters / 1e9:.3g} B ({size.source})"
        sent_by = route(config, placement, role).how if training and several else ""
        rows.append([role, told, replicas, f"{engine_gib:.2f}", *[f"{learner:.2f}"] * learns, *[sent_by] * several])
    where = f"{devices} accelerators" if devices else "the CPU"
    progress.table(
        f"Plan: {experiment.num_node} node(s), {where}, {config.cluster.placement}; GiB per device",
        [
            *("role", "parameters", "replicas x tp", "engine weights"),
            *[f"learner, {world} rank(s), without activations"] * learns,
            *["new weights by"] * several,
        ],
        rows,
    )
    if devices:
        progress.line(check_memory(config, device_gib(config, sizes, placement)))
