"""Which models a run has, and whether one process can hold them. Pure."""

from __future__ import annotations

from typing import Literal

from rlanything.config.schema import Config

Role = Literal["policy", "reward", "rewriter"]
Learner = Literal["policy", "reward"]
ROLES: tuple[Role, ...] = ("policy", "reward", "rewriter")
LEARNERS: tuple[Learner, ...] = ("policy", "reward")


def training_roles(config: Config) -> list[Role]:
    """The roles that a training run has engines for."""
    judged, adapts = config.reward.num_evaluation > 0, config.adaptation.enabled
    return [role for role, used in zip(ROLES, (True, judged, adapts), strict=True) if used]


def evaluation_roles(config: Config) -> list[Role]:
    """The roles that an evaluation has engines for: the policy, and its judge if there is one."""
    judged = config.evaluation.judge and config.reward.num_evaluation > 0 and bool(config.model.reward.path)
    return ["policy", "reward"] if judged else ["policy"]


def needs_cluster(config: Config) -> bool:
    """Whether one process on the CPU is not enough. On an accelerator it never is: the engines of one process could not
    leave their memory to its learners, for what vLLM sleeps by serves one engine a process."""
    experiment, engine = config.experiment, config.engine
    replicas = (engine.policy.num_replica, engine.reward.num_replica, engine.rewriter.num_replica)
    return experiment.num_device > 0 or max(experiment.num_node, config.cluster.num_learner, *replicas) > 1
