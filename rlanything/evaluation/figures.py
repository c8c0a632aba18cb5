"""The figures of an evaluation: success with its interval, pass@k, maj@k, best of k. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from rlanything.algorithm.diagnostics import diagnostics
from rlanything.domains.base import Domain
from rlanything.types import Group, Task, Trajectory

Z95 = 1.959964  # standard normal quantile of a two-sided 95 % interval
NUM_BOOTSTRAP = 10_000  # resamples of the tasks: the bounds then vary by about 0.1 points
MAX_DRAWN = 4_000_000  # tasks that are drawn at once: some tens of MB
BOOTSTRAP_SEED = 0  # the same episodes give the same interval

Figures = dict[str, float]
"""Figures by their names."""


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
    return _bootstrap(lambda drawn: solved[drawn].sum(1) / played[drawn].sum(1), len(played))


def paired_interval(differences: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of differences by task, tasks resampled; (nan, nan) without any."""
    x = np.array(differences, dtype=np.float64)
    return _bootstrap(lambda drawn: x[drawn].mean(1), len(x)) if len(x) else (float("nan"), float("nan"))


def _bootstrap(means: Callable[[np.ndarray], np.ndarray], num: int) -> tuple[float, float]:
    """Percentiles of `means` over draws of `num` tasks, which it gets in parts of shape [n, num]."""
    rng, each = np.random.default_rng(BOOTSTRAP_SEED), max(1, MAX_DRAWN // num)
    sizes = [min(each, NUM_BOOTSTRAP - start) for start in range(0, NUM_BOOTSTRAP, each)]
    found = np.concatenate([means(rng.integers(num, size=(size, num))) for size in sizes])
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def summarise(groups: Sequence[Group], domain: Domain) -> Figures:
    """Success rate with its interval, overall and by kind of task, partial scores, turns, tokens, diagnostics."""
    kind = domain.kind
    episodes = [(g, t) for g in groups for t in g.valid]
    low, high = success_interval(groups)
    tokens = sum(len(turn.response_ids) for _, t in episodes for turn in t.turns)
    figures = diagnostics(groups) | {
        "success_low": low,
        "success_high": high,
        "episodes": len(episodes),
        "response_tokens": tokens / max(1, len(episodes)),
        **_of_many(groups, domain.same_answer),
    }
    for name in sorted({kind(g.task) for g in groups}):
        of_kind = [t for g, t in episodes if kind(g.task) == name]
        figures[f"success_rate/{name}"] = float(np.mean([t.success for t in of_kind])) if of_kind else float("nan")
        figures |= _partial(of_kind, f"/{name}")
    return figures | _partial([t for _, t in episodes])


def _partial(episodes: Sequence[Trajectory], of: str = "") -> Figures:
    """Mean partial score, if the environment gives partial scores."""
    rewards = [t.score.reward for t in episodes if t.score is not None and t.score.reward is not None]
    return {f"partial_score{of}": float(np.mean(rewards))} if rewards else {}


def _of_many(groups: Sequence[Group], same: Callable[[Task, str], str] = lambda task, answer: answer) -> Figures:
    """Figures of tasks that were played k > 1 times.

    pass@j for j = 2, 4, 8, ... and k is the chance that one of j episodes solves a task, estimated without bias (Chen
    et al. 2021, arXiv 2107.03374). maj@k is how often the commonest answer is right: answers are one if `same` gives
    one name for them, or if both are right; without an answer an episode has no vote, and answers that tie share. Tasks
    that ask for no such answer (`Score.answer` is None) do not count. If the reward model wrote unit tests, best_of_k
    is how often the program that passes most of them is correct.
    """
    k = max((len(g.trajectories) for g in groups), default=0)
    played = [g for g in groups if g.valid]
    if k < 2 or not played:
        return {}
    sizes = [2**i for i in range(1, k.bit_length()) if 2**i < k]
    figures = {f"pass@{j}": sum(_passes(g, j) for g in played) / len(played) for j in (*sizes, k)}
    voting = [g for g in played if any(t.score is not None and t.score.answer is not None for t in g.valid)]
    if voting:
        figures[f"maj@{k}"] = sum(_majority(g, same) for g in voting) / len(voting)
    if any(g.shared for g in groups):
        figures[f"best_of_{k}"] = sum(map(_best, played)) / len(played)
    return figures


def _passes(group: Group, j: int) -> float:
    """The chance that at least one of j episodes solves the task; if fewer were valid, of as many as there are."""
    n, c = len(group.valid), sum(t.success for t in group.valid)
    j = min(j, n)
    return 1 - math.comb(n - c, j) / math.comb(n, j)


def _majority(group: Group, same: Callable[[Task, str], str]) -> float:
    given = [(t.success, t.score.answer) for t in group.valid if t.score is not None and t.score.answer]
    votes = Counter((right, "" if right else same(group.task, answer)) for right, answer in given)
    commonest = [right for (right, _), n in votes.items() if n == max(votes.values())]
    return sum(commonest) / max(1, len(commonest))


def _best(group: Group) -> float:
    def passed(trajectory: Trajectory) -> int:
        return sum(s == 1 for j in group.shared for (episode, _), s in j.scores.items() if episode == trajectory.index)

    most = max(map(passed, group.valid))
    best = [t.success for t in group.valid if passed(t) == most]
    return sum(best) / len(best)
