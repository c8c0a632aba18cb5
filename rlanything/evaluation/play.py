"""Episodes of a fixed set of tasks, the same at every evaluation."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from rlanything.config.schema import Config, RolloutConfig
from rlanything.domains.base import Domain
from rlanything.errors import RunError
from rlanything.rollout.collect import Batch, Collect
from rlanything.runs.progress import Progress
from rlanything.types import Group, Task


def evaluation_tasks(domain: Domain, split: str, num: int, seed: int) -> list[Task]:
    """The same `num` tasks of a split at every evaluation (0: all)."""
    tasks = sorted(domain.tasks(split), key=lambda t: t.id)
    random.Random(f"{seed}/{split}").shuffle(tasks)
    return tasks[:num] if num else tasks


def check_failures(groups: Sequence[Group], allowed: float) -> None:
    """Raise RunError if more episodes broke than `rollout.max_failure_rate` allows."""
    episodes = [t for g in groups for t in g.trajectories]
    broken = [t for t in episodes if t.status.is_failure]
    if len(broken) > allowed * len(episodes):
        first = broken[0]
        raise RunError(
            f"{len(broken)} of {len(episodes)} episodes broke, more than rollout.max_failure_rate={allowed}; "
            f"the first: task {first.task_id}, {first.status}: {first.error}; mend what it names, then run the same "
            "command again"
        )


def evaluation_rollout(config: Config) -> RolloutConfig:
    """How episodes of an evaluation are played: as in training, but with the evaluation's sampling and limits."""
    own = config.evaluation
    limits = {"max_interaction_step": own.max_interaction_step, "max_response_tokens": own.max_response_tokens}
    changed = {key: value for key, value in limits.items() if value}
    return config.rollout.model_copy(update={"temperature": own.temperature, "top_p": own.top_p} | changed)


async def run_evaluation(
    tasks: Sequence[Task], collect: Collect, config: Config, progress: Progress, label: str, judged: bool
) -> list[Group]:
    """Play every task `evaluation.num_rollout` times with the evaluation's sampling, with a progress bar."""
    with progress.phase(label, len(tasks) * config.evaluation.num_rollout) as bar:
        return await play(tasks, collect, config, judged, bar.advance)


async def play(
    tasks: Sequence[Task], collect: Collect, config: Config, judged: bool, on_end: Callable[[], None]
) -> list[Group]:
    """`run_evaluation` without a bar; `on_end` is called after every episode."""
    rollout = evaluation_rollout(config)
    num, seed = config.evaluation.num_rollout, f"{config.experiment.seed}/evaluation"
    # A turn that the judge cannot read stays unjudged: what the policy can do does not depend on its judge.
    batch = Batch(tasks=tasks, num=num, seed=seed, rollout=rollout, judged=judged, required=False)
    groups = await collect(batch, on_end)
    check_failures(groups, rollout.max_failure_rate)
    return groups
