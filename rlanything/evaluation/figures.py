"""The figures of an evaluation: success with its interval, pass@k, maj@k, best of k. Pure."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from rlanything.algorithm.diagnostics import figures
from rlanything.algorithm.summary import GroupSummary, Tally
from rlanything.types import Task

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


def success_interval(groups: Sequence[GroupSummary]) -> tuple[float, float]:
    """95 % interval of the success rate over tasks like these; (nan, nan) without episodes.

    Episodes of one task resemble one another, so tasks are the independent observations. If every task was played once
    it is Wilson's interval. Otherwise tasks are resampled with all their episodes (percentile bootstrap, Efron 1979;
    clusters as in Miller 2024, arXiv 2411.00640). If all tasks have the same rate, nothing is known of the spread
    between tasks, and the interval is Wilson's for as many single episodes as there are tasks.
    """
    solved = np.array([g.num_solved for g in groups if g.num_valid], dtype=np.float64)
    played = np.array([g.num_valid for g in groups if g.num_valid], dtype=np.float64)
    if len(played) == 0:
        return float("nan"), float("nan")
    rates = solved / played
    if played.max() == 1 or rates.min() == rates.max():
        return wilson(round(float(rates.sum())), len(rates))
    return _bootstrap(lambda drawn: solved[drawn].sum(1) / played[drawn].sum(1), len(played))


def share_interval(shares: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of one share for each task; (nan, nan) without any.

    As for success: Wilson's if each share is 0 or 1, or if all are equal, otherwise a bootstrap over tasks.
    """
    if set(shares) <= {0.0, 1.0} or min(shares) == max(shares):
        return wilson(round(sum(shares)), len(shares))
    return paired_interval(shares)


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


def summarise(groups: Sequence[GroupSummary], kind: Callable[[Task], str]) -> Figures:
    """Success rate and partial score with their intervals, turns, tokens, diagnostics.

    Success, partial scores and the share of episodes with a call of a tool are there by kind of task, too.
    """
    whole = Tally.of_all(g.tally for g in groups)
    found = figures(whole) | _scores(groups, whole) | _of_many(groups)
    for name in sorted({kind(g.task) for g in groups}):
        of_kind = [g for g in groups if kind(g.task) == name]
        tally = Tally.of_all(g.tally for g in of_kind)
        found[f"success_rate/{name}"] = tally.mean("success_rate")
        found |= {f"{key}/{name}": value for key, value in _scores(of_kind, tally).items()}
        if "call_share" in found:  # a kind whose episodes call no tool has 0
            found[f"call_share/{name}"] = tally.mean("call_share")
    return found


def _scores(groups: Sequence[GroupSummary], tally: Tally) -> Figures:
    """Number of episodes, the interval of success, and if the environment gives partial scores their mean and its
    interval over tasks. `tally` is that of all groups."""
    low, high = success_interval(groups)
    found = {"success_low": low, "success_high": high, "episodes": float(sum(g.num_valid for g in groups))}
    if not tally.counts["mean_score"]:
        return found
    low, high = share_interval([g.tally.mean("mean_score") for g in groups if g.tally.counts["mean_score"]])
    return found | {"partial_score": tally.mean("mean_score"), "partial_low": low, "partial_high": high}


def _of_many(groups: Sequence[GroupSummary]) -> Figures:
    """Figures of tasks that were played k > 1 times, with 95 % intervals of those of all k episodes.

    pass@j for every j from 2 to k is the chance that one of j episodes solves a task, estimated without bias (Chen et
    al. 2021, arXiv 2107.03374). maj@k is how often the commonest answer is right (`algorithm/votes.py`); tasks that ask
    for no such answer (`Score.answer` is None) do not count. If the reward model wrote unit tests, best_of_k is how
    often the program that passes most of them is correct.
    """
    k = max((g.num_valid + g.num_broken for g in groups), default=0)
    played = [g for g in groups if g.num_valid]
    if k < 2 or not played:
        return {}
    shares = {f"pass@{j}": [_passes(g, j) for g in played] for j in range(2, k + 1)}
    of_all = {f"pass@{k}": shares[f"pass@{k}"]}
    if voted := [g.tally.mean("majority") for g in played if g.tally.counts["majority"]]:
        of_all[f"maj@{k}"] = voted
    if any(g.tally.counts["test_unparsable_rate"] for g in played):
        of_all[f"best_of_{k}"] = [g.tally.mean("best") for g in played]
    found = {name: sum(of_tasks) / len(of_tasks) for name, of_tasks in (shares | of_all).items()}
    for name, of_tasks in of_all.items():
        found[f"{name}_low"], found[f"{name}_high"] = share_interval(of_tasks)
    return found


def _passes(group: GroupSummary, j: int) -> float:
    """The chance that at least one of j episodes solves the task; if fewer were valid, of as many as there are."""
    n, c = group.num_valid, group.num_solved
    j = min(j, n)
    return 1 - math.comb(n - c, j) / math.comb(n, j)
