"""A configuration decides which models a run has, how many tasks it plays, and if one process can hold it. Pure."""

from rlanything.config.schema import Config
from rlanything.config.section import Learner, Role

ROLES: tuple[Role, ...] = ("policy", "reward", "rewriter")
LEARNERS: tuple[Learner, ...] = ("policy", "reward")


def engine_roles(config: Config, learns: bool = True) -> list[Role]:
    """The roles that a training run has engines for, or an evaluation if it does not learn."""
    judges = config.reward.num_evaluation > 0 and config.reward.judge == "model"
    if not learns:
        judges = judges and config.evaluation.judge and bool(config.model.reward.path)
    has_engine = {"policy": True, "reward": judges, "rewriter": learns and config.adaptation.enabled}
    return [role for role in ROLES if has_engine[role]]


def learner_roles(config: Config) -> list[Learner]:
    """The roles whose models a training run trains."""
    engines, trained = engine_roles(config), {"policy": True, "reward": config.reward.trained}
    return [role for role in LEARNERS if role in engines and trained[role]]


def most_tasks(config: Config) -> int:
    """Tasks that a training step plays at most, candidates included."""
    return config.rollout.num_trial + config.adaptation.max_candidate * config.adaptation.enabled


def needs_cluster(config: Config) -> bool:
    """Return whether a run needs several processes.

    On an accelerator it always does: vLLM can put one engine a process to sleep, and without that the engines of one
    process could not leave their memory to its learners.
    """
    experiment = config.experiment
    replicas = [config.engine.of(role).num_replica for role in ROLES]
    return experiment.num_device > 0 or max(experiment.num_node, config.cluster.num_learner, *replicas) > 1
