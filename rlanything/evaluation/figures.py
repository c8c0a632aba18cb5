"""The benchmark run: episodes of a fixed set of tasks, and what they come to."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from rlanything.algorithm.diagnostics import diagnostics
from rlanything.config.schema import Config
from rlanything.domains.base import Domain
from rlanything.rollout.collect import Batch, Collect
from rlanything.runs.folder import RunError
from rlanything.runs.progress import Progress
from rlanything.types import Group, Task, Trajectory

Z95 = 1.959964  # standard normal quantile of a two-sided 95 % interval


def wilson(successes: int, total: int) -> tuple[float, float]:
    """95 % confidence interval of a proportion (Wilson 1927); (nan, nan) without observations."""
    if total == 0:
        return float("nan"), float("nan")
    p, z2 = successes / total, Z95 * Z95
    middle = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = Z95 * math.sqrt(p * (1 - p) / total + z2 / (4 * total * total)) / (1 + z2 / total)
    return max(0.0, middle - half), min(1.0, middle + half)


def evaluation_tasks(domain: Domain, split: str, num: int, seed: int) -> list[Task]:
    """The same `num` tasks of a split at every evaluation (0: all)."""
    tasks = sorted(domain.tasks(split), key=lambda t: t.id)
    random.Random(f"{seed}/{split}").shuffle(tasks)
    return tasks[:num] if num else tasks


def check_failures(groups: Sequence[Group], allowed: float) -> None:
    """Raise RunError where more episodes broke than `rollout.max_failure_rate` allows."""
    episodes = [t for g in groups for t in g.trajectories]
    broken = [t for t in episodes if t.status.is_failure]
    if len(broken) > allowed * len(episodes):
        first = broken[0]
        raise RunError(
            f"{len(broken)} of {len(episodes)} episodes broke, more than rollout.max_failure_rate={allowed}; "
            f"the first: task {first.task_id}, {first.status}: {first.error}; mend what it names, then run the same "
            "command again"
        )


async def run_evaluation(
    tasks: Sequence[Task], collect: Collect, config: Config, progress: Progress, label: str, judged: bool
) -> list[Group]:
    """Play every task `evaluation.num_rollout` times at the evaluation's temperature."""
    with progress.phase(label, len(tasks) * config.evaluation.num_rollout) as bar:
        return await play(tasks, collect, config, judged, bar.advance)


async def play(
    tasks: Sequence[Task], collect: Collect, config: Config, judged: bool, on_end: Callable[[], None]
) -> list[Group]:
    """The same without a bar; `on_end` is called after every episode."""
    rollout = config.rollout.model_copy(update={"temperature": config.evaluation.temperature})
    num, seed = config.evaluation.num_rollout, f"{config.experiment.seed}/evaluation"
    # A turn that the judge cannot read stays unjudged here: what the policy can do does not depend on its judge.
    groups = await collect(Batch(tasks, num, seed, rollout, judged, required=False), on_end)
    check_failures(groups, rollout.max_failure_rate)
    return groups


def summarise(groups: Sequence[Group], domain: Domain) -> dict[str, float]:
    """Success rate with its interval, overall and per task type, turns, tokens, and the diagnostics of a step."""
    episodes = [(g, t) for g in groups for t in g.valid]
    successes = sum(t.success for _, t in episodes)
    low, high = wilson(successes, len(episodes))
    tokens = sum(len(turn.response_ids) for _, t in episodes for turn in t.turns)
    figures = diagnostics(groups) | {
        "success_low": low,
        "success_high": high,
        "episodes": len(episodes),
        "response_tokens": tokens / max(1, len(episodes)),
        **_of_many(groups),
    }
    for kind in sorted({domain.kind(g.task) for g in groups}):
        of_kind = [t.success for g, t in episodes if domain.kind(g.task) == kind]
        figures[f"success_rate/{kind}"] = sum(of_kind) / len(of_kind) if of_kind else float("nan")
    return figures


def _of_many(groups: Sequence[Group]) -> dict[str, float]:
    """Where every task was played k > 1 times: the share of tasks that one of the k solved (pass@k), and, where the
    reward model wrote tests, how often that one solves its task which passes most of them (equals share the place)."""
    k = max((len(g.trajectories) for g in groups), default=0)
    played = [g.valid for g in groups if g.valid]
    if k < 2 or not played:
        return {}
    figures = {f"pass@{k}": sum(any(t.success for t in group) for group in played) / len(played)}
    if any(g.tests for g in groups):
        figures[f"best_of_{k}"] = sum(_best(group) for group in played) / len(played)
    return figures


def _best(trajectories: Sequence[Trajectory]) -> float:
    passed = [sum(score == 1 for turn in t.turns for score in turn.scores) for t in trajectories]
    best = [t.success for t, n in zip(trajectories, passed, strict=True) if n == max(passed)]
    return sum(best) / len(best)
