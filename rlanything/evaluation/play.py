"""Episodes of a fixed set of tasks, the same at every evaluation."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from rlanything.algorithm.summary import GroupSummary
from rlanything.config.schema import Config, RolloutConfig
from rlanything.domains.base import Domain, playable, split_tasks
from rlanything.errors import RunError
from rlanything.rollout.collect import Batch, Collect
from rlanything.types import Task


def evaluation_tasks(domain: Domain, split: str, num: int) -> list[Task]:
    """`num` tasks of a split (0: all), the same for every run: seeds are then compared on equal tasks."""
    return drawn_tasks(domain, split, num, seed=0)


def drawn_tasks(domain: Domain, split: str, num: int, seed: int) -> list[Task]:
    """`num` tasks of a split (0: all), drawn at random with a seed, less those that this machine refuses. Raises
    TaskError if none is left."""
    tasks = split_tasks(domain, split)
    random.Random(f"{seed}/{split}").shuffle(tasks)
    return playable(domain, split, tasks[:num] if num else tasks)


def check_failures(groups: Sequence[GroupSummary], allowed: float) -> None:
    """Raise RunError if more episodes broke than `rollout.max_failure_rate` allows."""
    broken = sum(g.num_broken for g in groups)
    num = broken + sum(g.num_valid + g.num_branch for g in groups)
    if broken > allowed * num:
        first = next(g for g in groups if g.num_broken)
        raise RunError(
            f"{broken} of {num} episodes broke, more than rollout.max_failure_rate={allowed}; the first: task "
            f"{first.task.id}, {first.fault}; mend what it names, then run the same command again"
        )


def evaluation_rollout(config: Config) -> RolloutConfig:
    """How episodes of an evaluation are played: as in training, but with the evaluation's sampling and limits."""
    own = config.evaluation
    limits = {"max_interaction_step": own.max_interaction_step, "max_response_tokens": own.max_response_tokens}
    changed = {key: value for key, value in limits.items() if value}
    return config.rollout.model_copy(
        update={"temperature": own.temperature, "top_p": own.top_p, "num_branch": 0} | changed
    )


def evaluation_batch(tasks: Sequence[Task], config: Config, judged: bool, path: Path | None = None) -> Batch:
    """Every task `evaluation.num_rollout` times with the evaluation's sampling; episodes are written to `path`."""
    return Batch(
        tasks=tasks,
        num=config.evaluation.num_rollout,
        seed=f"{config.experiment.seed}/evaluation",
        rollout=evaluation_rollout(config),
        path=path,
        judged=judged,
        required=False,  # a turn that the judge cannot read stays unjudged: it says nothing of the policy
        trains=False,
    )


async def play(batch: Batch, collect: Collect, on_end: Callable[[], None]) -> list[GroupSummary]:
    """The summaries of a batch; `on_end` is called after every episode. Raises RunError if too many broke."""
    groups = [digest.summary for digest in await collect(batch, on_end)]
    check_failures(groups, batch.rollout.max_failure_rate)
    return groups
