"""An estimate of a step's seconds on accelerators, from the plan's own arithmetic.

It counts what every step does if responses are as long as they may be: tokens that engines make and that learners
train. It leaves out prompts, the reading of KV caches, environments, waiting and the hand-over of accelerators.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlanything.config.roles import most_tasks
from rlanything.config.section import Learner, Role
from rlanything.plan.memory import ModelSize
from rlanything.plan.plan import Plan

FLOPS = 989e12  # [FLOP/s] bf16 dense of an H100 SXM (data sheet)
SHARE = 0.4  # of them that decoding and updates reach; docs/gpu.md has 0.49 for the learner
READ_BYTES = 2.7e12  # [B/s] that decoding reads: 80 % of the data sheet's 3.35e12
STEP_S = 0.003  # assumed: of a decode step besides, for scheduler, launches and sampler
IDLE = 0.2  # share of the time below which an engine's accelerators are better given to another role


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Seconds of a step's parts."""

    engines: dict[Role, float]
    """Seconds that each role's engines make tokens."""
    updates: dict[Learner, float]
    """Seconds of each learner's updates, one after the other on all ranks."""
    shared: bool
    """All engines have the same accelerator."""
    overlaps: bool
    """The next rollout goes on beside the updates (`rollout.max_staleness`)."""

    @property
    def rollout_s(self) -> float:
        """Seconds of playing and judging, which go on beside each other, on the same accelerator by turns."""
        playing = [seconds for role, seconds in self.engines.items() if role != "rewriter"]
        return sum(playing) if self.shared else max(playing, default=0.0)

    @property
    def total_s(self) -> float:
        """Seconds of the whole step."""
        made, learned = self.rollout_s + self.engines.get("rewriter", 0.0), sum(self.updates.values())
        return max(made, learned) if self.overlaps else made + learned


def estimate(plan: Plan, sizes: Mapping[Role, ModelSize], tokens: Mapping[Role, float]) -> Estimate:
    """The estimate from the tokens that each role makes in a step at most. Learners train what their role makes."""
    config = plan.config
    rollout = config.rollout
    episodes = most_tasks(config) * rollout.num_rollout_per_trial
    playing = min(episodes, rollout.max_concurrent * max(1, len(plan.placement.hosts)))
    at_once = {"policy": playing, "reward": playing * config.reward.num_evaluation}
    at_once["rewriter"] = config.adaptation.max_candidate
    engines = {
        role: decode_s(sizes[role].parameters, engine.tensor_parallel_size, tokens[role] / engine.num_replica, batch)
        for role in plan.roles
        if tokens[role] and (engine := config.engine.of(role))
        for batch in [min(engine.max_num_seqs, max(1.0, at_once[role] / engine.num_replica))]
    }
    learning = [role for role in plan.learners if tokens[role]]
    updates = {role: _update_s(plan, role, sizes[role].parameters, tokens[role]) for role in learning}
    shared = config.experiment.num_node * config.experiment.num_device == 1
    return Estimate(engines=engines, updates=updates, shared=shared, overlaps=rollout.max_staleness > 0)


def decode_s(parameters: float, tensor_parallel: int, tokens: float, batch: float) -> float:
    """Seconds in which one replica makes `tokens`, `batch` at a time. A pass reads all weights; a token costs 2 FLOP a
    parameter."""
    read = 2 * parameters / (READ_BYTES * tensor_parallel)
    compute = batch * 2 * parameters / (FLOPS * SHARE * tensor_parallel)
    return tokens / batch * (STEP_S + read + compute)


def _update_s(plan: Plan, role: Learner, parameters: float, tokens: float) -> float:
    training = plan.config.training.of(role)
    flop = (8 if training.gradient_checkpointing else 6) * training.num_epoch
    flop += 2 * ((training.old_logprobs == "learner") + (training.kl_beta > 0))
    return flop * parameters * tokens / (FLOPS * SHARE * len(plan.placement.learners))


def told(found: Estimate) -> str:
    """The estimate in a line."""

    def parts(seconds: Mapping[Any, float]) -> str:
        return ", ".join(f"{role} {value:.0f}" for role, value in seconds.items())

    return (
        f"estimate for H100s, if every response were as long as allowed, without prompts, KV caches, environments and "
        f"waiting: {found.total_s:.0f} s a step: engines {parts(found.engines)}; updates {parts(found.updates)}"
    )


def advice(plan: Plan, found: Estimate) -> Iterator[str]:
    """Tell what to change if accelerators would have little to do."""
    config = plan.config
    if config.cluster.placement == "split" and not config.rollout.max_staleness:
        yield (
            f"learners idle while engines work (about {found.rollout_s:.0f} s a step), and "
            "engines while learners do; set rollout.max_staleness=1, or cluster.placement=colocated"
        )
    if found.shared or not found.engines:
        return
    busiest = max(found.engines, key=lambda role: found.engines[role])
    for role, seconds in found.engines.items():
        engine = config.engine.of(role)
        if engine.num_replica > 1 and seconds < IDLE * found.engines[busiest]:
            num = engine.num_replica * engine.tensor_parallel_size
            yield (
                f"the {num} accelerators of the {role} engine would make tokens for {seconds:.0f} s a step, those of "
                f"the {busiest} engine for {found.engines[busiest]:.0f}; lower engine.{role}.num_replica, and raise "
                f"engine.{busiest}.num_replica"
            )
