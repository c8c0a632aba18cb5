"""Which models a run has, and whether one process can hold them. Pure."""

from __future__ import annotations

from rlanything.config.schema import Config
from rlanything.config.section import Learner, Role

ROLES: tuple[Role, ...] = ("policy", "reward", "rewriter")
LEARNERS: tuple[Learner, ...] = ("policy", "reward")


def training_roles(config: Config) -> list[Role]:
    """The roles that a training run has engines for."""
    roles: list[Role] = ["policy"]
    if config.reward.num_evaluation > 0:
        roles.append("reward")
    if config.adaptation.enabled:
        roles.append("rewriter")
    return roles


def evaluation_roles(config: Config) -> list[Role]:
    """The roles that an evaluation has engines for: the policy, and the reward model if it is to judge."""
    judged = config.evaluation.judge and config.reward.num_evaluation > 0 and bool(config.model.reward.path)
    return ["policy", "reward"] if judged else ["policy"]


def needs_cluster(config: Config) -> bool:
    """Whether a run needs several processes.

    On an accelerator it always does: vLLM can put one engine a process to sleep, and without that the engines of one
    process could not leave their memory to its learners.
    """
    experiment = config.experiment
    replicas = [config.engine.of(role).num_replica for role in ROLES]
    return experiment.num_device > 0 or max(experiment.num_node, config.cluster.num_learner, *replicas) > 1
