"""The figures of an evaluation: success with its interval, pass@k, best of k. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from rlanything.algorithm.diagnostics import diagnostics
from rlanything.types import Group, Task, Trajectory

Z95 = 1.959964  # standard normal quantile of a two-sided 95 % interval
NUM_BOOTSTRAP = 10_000  # resamples of the tasks: the bounds then vary by about 0.1 points
BOOTSTRAP_SEED = 0  # the same episodes give the same interval


def wilson(successes: int, total: int) -> tuple[float, float]:
    """95 % confidence interval of a proportion (Wilson 1927); (nan, nan) without observations."""
    if total == 0:
        return float("nan"), float("nan")
    p, z2 = successes / total, Z95 * Z95
    middle = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = Z95 * math.sqrt(p * (1 - p) / total + z2 / (4 * total * total)) / (1 + z2 / total)
    return max(0.0, middle - half), min(1.0, middle + half)


def success_interval(groups: Sequence[Group]) -> tuple[float, float]:
    """95 % interval of the success rate over tasks like these; (nan, nan) without episodes.

    Episodes of one task resemble one another, so tasks are the independent observations. If every task was played once
    it is Wilson's interval. Otherwise tasks are resampled with all their episodes (percentile bootstrap, Efron 1979;
    clusters as in Miller 2024, arXiv 2411.00640). If all tasks have the same rate, nothing is known of the spread
    between tasks, and the interval is Wilson's for as many single episodes as there are tasks.
    """
    solved = np.array([sum(t.success for t in g.valid) for g in groups if g.valid], dtype=np.float64)
    played = np.array([len(g.valid) for g in groups if g.valid], dtype=np.float64)
    if len(played) == 0:
        return float("nan"), float("nan")
    rates = solved / played
    if played.max() == 1 or rates.min() == rates.max():
        return wilson(round(float(rates.sum())), len(rates))
    draws = np.random.default_rng(BOOTSTRAP_SEED).integers(len(played), size=(NUM_BOOTSTRAP, len(played)))
    means = solved[draws].sum(1) / played[draws].sum(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def summarise(groups: Sequence[Group], kind: Callable[[Task], str]) -> dict[str, float]:
    """Success rate with its interval, overall and by the `kind` of task, partial scores, turns, tokens, diagnostics."""
    episodes = [(g, t) for g in groups for t in g.valid]
    low, high = success_interval(groups)
    tokens = sum(len(turn.response_ids) for _, t in episodes for turn in t.turns)
    figures = diagnostics(groups) | {
        "success_low": low,
        "success_high": high,
        "episodes": len(episodes),
        "response_tokens": tokens / max(1, len(episodes)),
        **_of_many(groups),
    }
    for name in sorted({kind(g.task) for g in groups}):
        of_kind = [t for g, t in episodes if kind(g.task) == name]
        figures[f"success_rate/{name}"] = float(np.mean([t.success for t in of_kind])) if of_kind else float("nan")
        figures |= _partial(of_kind, f"/{name}")
    return figures | _partial([t for _, t in episodes])


def _partial(episodes: Sequence[Trajectory], of: str = "") -> dict[str, float]:
    """Mean partial score, if the environment gives partial scores."""
    rewards = [t.score.reward for t in episodes if t.score is not None and t.score.reward is not None]
    return {f"partial_score{of}": float(np.mean(rewards))} if rewards else {}


def _of_many(groups: Sequence[Group]) -> dict[str, float]:
    """If tasks were played k > 1 times: pass@k, the share of tasks that one of the k episodes solved. If the reward
    model wrote unit tests: how often the program that passes most of them is correct (programs that tie share)."""
    k = max((len(g.trajectories) for g in groups), default=0)
    played = [g for g in groups if g.valid]
    if k < 2 or not played:
        return {}
    figures = {f"pass@{k}": sum(any(t.success for t in g.valid) for g in played) / len(played)}
    if any(g.shared for g in groups):
        figures[f"best_of_{k}"] = sum(map(_best, played)) / len(played)
    return figures


def _best(group: Group) -> float:
    def passed(trajectory: Trajectory) -> int:
        return sum(s == 1 for j in group.shared for (episode, _), s in j.scores.items() if episode == trajectory.index)

    most = max(map(passed, group.valid))
    best = [t.success for t in group.valid if passed(t) == most]
    return sum(best) / len(best)
