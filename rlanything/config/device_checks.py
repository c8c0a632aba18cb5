"""Which keys must fit together on accelerators and in several processes: `checks.py` collects the messages."""

from __future__ import annotations

from collections.abc import Iterator

from rlanything.config.roles import LEARNERS, evaluation_roles, needs_cluster, training_roles
from rlanything.config.schema import Config
from rlanything.config.section import Learner


def _learners(config: Config) -> list[Learner]:
    return [role for role in training_roles(config) if role in LEARNERS]


def one_accelerator(config: Config, learns: bool) -> Iterator[str]:
    """A single accelerator holds all engines, and one learner after the other."""
    if not config.experiment.num_node == config.experiment.num_device == 1:
        return
    roles = training_roles(config) if learns else evaluation_roles(config)
    engines = {role: config.engine.of(role) for role in roles}
    for role, engine in engines.items():
        if engine.num_replica > 1 or engine.tensor_parallel_size > 1:
            yield (
                f"engine.{role}.num_replica={engine.num_replica}, tensor_parallel_size={engine.tensor_parallel_size}: "
                "expected 1 and 1 on one accelerator; lower them, or raise experiment.num_device"
            )
    if learns and config.cluster.placement == "split":
        yield (
            "cluster.placement=split: one accelerator cannot be split between engines and learners; use colocated, or "
            "raise experiment.num_device"
        )
    if learns and config.cluster.num_learner > 1:
        yield (
            f"cluster.num_learner={config.cluster.num_learner}: expected at most 1 on one accelerator; lower it, or "
            "raise experiment.num_device"
        )
    shares = [engine.gpu_memory_utilization for engine in engines.values() if engine.kind == "vllm"]
    if sum(shares) >= 1:
        yield (
            f"engine.*.gpu_memory_utilization: {' + '.join(f'{s:g}' for s in shares)} of one accelerator; expected "
            "less than 1 together, with room for what each process needs besides (such as 0.3 each)"
        )


def stages(config: Config) -> Iterator[str]:
    """What DeepSpeed can do at each ZeRO stage."""
    for role in _learners(config):
        training = config.training.of(role)
        if training.offload and training.zero_stage == 0:
            yield (
                f"training.{role}.offload=true with zero_stage=0: DeepSpeed holds optimizer states on the host at "
                "stages 1 to 3; raise zero_stage, or set offload=false"
            )
        if training.compile and training.zero_stage == 3:
            yield (
                f"training.{role}.compile=true with zero_stage=3: DeepSpeed gathers weights within the layers that "
                "would be compiled; use zero_stage=2, or set compile=false"
            )


def staleness(config: Config) -> Iterator[str]:
    """Rollouts that overlap updates need processes of their own, and a correction for their older weights."""
    if not config.rollout.max_staleness:
        return
    if not needs_cluster(config):
        yield (
            "rollout.max_staleness=1: one process cannot make tokens while it learns; expected 0, or processes of "
            "their own for engines and learners (engine.*.num_replica, cluster.num_learner, experiment.num_device)"
        )
    for role in _learners(config):
        training = config.training.of(role)
        if training.old_logprobs == "learner" and training.importance_cap == 0:
            yield (
                f"training.{role}.importance_cap=0 with rollout.max_staleness=1: nothing would correct for the older "
                "weights that played; expected a cap such as 2, or old_logprobs=engine"
            )


def sharing(config: Config) -> Iterator[str]:
    """What engines and learners cannot do if they take turns with the same accelerators."""
    if config.cluster.placement != "colocated" or not config.experiment.num_device:
        return
    if config.rollout.max_staleness:
        yield (
            "rollout.max_staleness=1: accelerators that engines and learners share cannot do both at once; use "
            "cluster.placement=split"
        )
    if config.cluster.weight_transfer == "broadcast":
        yield (
            "cluster.weight_transfer=broadcast: NCCL wants an accelerator for each of its ends, and learners "
            "share theirs with engines; use weight_transfer=auto, or cluster.placement=split"
        )
    for role in _learners(config):
        training = config.training.of(role)
        if training.zero_stage == 0:
            yield (
                f"training.{role}.zero_stage=0: cluster.placement=colocated hands accelerators over between engines "
                "and learners, which DeepSpeed can at stages 1 to 3; raise it, or use cluster.placement=split"
            )
        if training.zero_stage == 3 and training.lora_rank:
            yield (
                f"training.{role}.lora_rank with zero_stage=3: DeepSpeed cannot hand over an accelerator that holds "
                "frozen weights in shards; use zero_stage=2, or cluster.placement=split"
            )
