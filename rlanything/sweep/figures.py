"""The figures of a sweep: every variant's success, and its difference from the first one. Pure but for reading runs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlanything.evaluation.compare import all_evaluations, evaluations
from rlanything.evaluation.figures import Z95, Figures
from rlanything.runs.metrics import Record, read_jsonl
from rlanything.runs.store import success_rates

T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}  # Student's, by degrees of freedom
MIN_SHARED = 0.9  # of the tasks that a seed has; with fewer, too many would be left out

Runs = Mapping[str, Mapping[int, Path]]
"""The folders of finished runs by variant and seed, in the configuration's order."""
Rates = Mapping[int, Mapping[str, float]]
"""Success rates by seed and task."""
Difference = tuple[float, float, float]
"""A mean difference and the ends of its 95 % interval."""


class Point(NamedTuple):
    """An evaluation, as means over seeds."""

    step: float
    seconds: float
    """Duration of the training steps until then [s]."""
    tokens: float
    """Tokens that all models had generated in training by then."""
    success: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One variant on one split, as means over its seeds."""

    variant: str
    num_seed: int
    before: float
    """Success rate at the first evaluation."""
    after: float
    """At the last one."""
    difference: Difference | None
    """The mean of `after` less the first variant's, on the seeds and tasks of both, and its 95 % interval; None for the
    first variant."""
    at_equal_seconds: float
    """Success rate when each seed had been trained as long as its fastest variant took."""
    difference_at_equal_seconds: Difference | None
    """It is to `at_equal_seconds` what `difference` is to `after`."""
    kinds: Figures
    """Success rate of each kind of task at the last evaluation."""
    rm_process: float
    """Accuracy of the votes against step labels at the last evaluation; nan without any."""
    accepted: float
    """Variants of tasks that were accepted."""
    tokens: float
    """Tokens that all models generated in training."""
    seconds: float
    """Duration of all training steps [s]."""


def differences(runs: Runs, split: str, pair: Sequence[str]) -> tuple[Difference, Difference]:
    """The first variant of a pair less the second: at the end, and at equal seconds, as in `Row`."""
    until = _shortest(runs, split)
    ours, other = (runs.get(name, {}) for name in pair)
    return (
        paired_difference(_rates(ours, split), _rates(other, split)),
        paired_difference(_rates_at(ours, split, until), _rates_at(other, split, until)),
    )


def rows(runs: Runs, split: str) -> list[Row]:
    """A row for each variant that evaluated the split."""
    until, first = _shortest(runs, split), next(iter(runs), "")
    found = []
    for number, (variant, by_seed) in enumerate(runs.items()):
        records = {seed: read_jsonl(run / "metrics.jsonl") for seed, run in by_seed.items()}
        measured = [_of_split(r, split) for r in records.values()]
        measured = [m for m in measured if m]
        if not measured:
            continue
        train = [[r for r in every if r["phase"] == "train"] for every in records.values()]
        kinds = sorted({key for m in measured for key in m[-1] if key.startswith("success_rate/")})
        at_end, at_equal = differences(runs, split, (variant, first)) if number else (None, None)
        row = Row(
            variant=variant,
            num_seed=len(measured),
            before=_mean([m[0]["success_rate"] for m in measured]),
            after=_mean([m[-1]["success_rate"] for m in measured]),
            difference=at_end,
            at_equal_seconds=_mean([_mean([*rates.values()]) for rates in _rates_at(by_seed, split, until).values()]),
            difference_at_equal_seconds=at_equal,
            kinds={k.partition("/")[2]: _mean([m[-1].get(k) for m in measured]) for k in kinds},
            rm_process=_mean([m[-1].get("rm_process_accuracy") for m in measured]),
            accepted=_mean([steps[-1].get("tasks/accepted") for steps in train if steps]),
            tokens=_mean([sum(map(_tokens, steps)) for steps in train]),
            seconds=_mean([sum(r.get("step_s") or 0.0 for r in steps) for steps in train]),
        )
        found.append(row)
    return found


def paired_difference(ours: Rates, first: Rates) -> Difference:
    """The mean difference by seed and task, and its 95 % interval; nan without a seed and a task of both.

    Evaluations play the same tasks for every seed, and what one of them lacks is left out. If the seeds share fewer
    than `MIN_SHARED` of their tasks, the mean of each seed counts as one value, which holds the noise of both.

    Both seeds and tasks could have been others: they are random effects of a two-way layout without replication. The
    mean's variance is that of its mean squares, (seeds + tasks - rest) / (S T), with Satterthwaite's degrees of freedom
    (Biometrics Bulletin 2, 1946). One seed says nothing of others: its interval is over tasks alone.
    """
    by_seed = {s: {t: ours[s][t] - first[s][t] for t in ours[s].keys() & first[s].keys()} for s in ours.keys() & first}
    found = [of_task for of_task in by_seed.values() if of_task]
    if not found:
        return float("nan"), float("nan"), float("nan")
    tasks = set.intersection(*(set(of_task) for of_task in found))
    if len(tasks) < MIN_SHARED * max(map(len, found)):
        x = np.array([[np.mean(list(of_task.values()))] for of_task in found])
    else:
        x = np.array([[of_task[t] for t in sorted(tasks)] for of_task in found])
    mean, half = float(x.mean()), float(_half_width(x))
    return mean, mean - half, mean + half


def _half_width(x: np.ndarray) -> float:
    """Half of the 95 % interval of the mean of x [S, T]; nan for a single value."""
    num_seed, num_task = x.shape
    if x.size == 1:
        return float("nan")
    if 1 in x.shape:
        return _student(x.size - 1) * float(x.std(ddof=1)) / x.size**0.5
    seeds, tasks = x.mean(1), x.mean(0)
    rest = x - seeds[:, None] - tasks + x.mean()
    squares = (num_task * seeds.var(ddof=1), num_seed * tasks.var(ddof=1))
    freedom = (num_seed - 1, num_task - 1)
    left = float((rest**2).sum()) / (freedom[0] * freedom[1])
    total = max(sum(squares) - left, left)
    if total == 0:
        return 0.0
    terms = sum(s**2 / df for s, df in zip(squares, freedom, strict=True)) + left**2 / (freedom[0] * freedom[1])
    return _student(max(float(total**2 / terms), 1.0)) * float(total / x.size) ** 0.5


def _student(freedom: float) -> float:
    """Student's two-sided 95 % quantile: for whole degrees below 5, and above by its expansion in 1 / freedom."""
    if freedom < 5:
        return T95[int(freedom)]
    z = Z95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def splits(runs: Runs) -> list[str]:
    """All splits that some run evaluated."""
    folders = [run for by_seed in runs.values() for run in by_seed.values()]
    return list(dict.fromkeys(split for run in folders for split in evaluations(run)))


def curve(by_seed: Mapping[int, Path], split: str) -> list[Point]:
    """Each evaluation, as means over the seeds that have it."""
    points: dict[int, list[tuple[float, float, float]]] = defaultdict(list)
    for run in by_seed.values():
        records = read_jsonl(run / "metrics.jsonl")
        for r in _of_split(records, split):
            steps = _until(records, r["step"])
            points[r["step"]].append((_seconds(records, r["step"]), sum(map(_tokens, steps)), r["success_rate"]))
    return [Point(float(step), *np.mean(found, axis=0).tolist()) for step, found in sorted(points.items())]


def _rates(by_seed: Mapping[int, Path], split: str) -> dict[int, dict[str, float]]:
    return {
        seed: success_rates(found[split][1]) for seed, run in by_seed.items() if split in (found := evaluations(run))
    }


def _rates_at(by_seed: Mapping[int, Path], split: str, until: Mapping[int, float]) -> Rates:
    """The rates when a seed's run had trained for `until` seconds, on a line between its evaluations."""
    found = {}
    for seed, run in by_seed.items():
        if seed in until and (by_step := all_evaluations(run).get(split)):
            records = read_jsonl(run / "metrics.jsonl")
            steps = [r["step"] for r in _of_split(records, split) if r["step"] in by_step]
            spent = [_seconds(records, step) for step in steps]
            place = float(np.interp(until[seed], spent, range(len(spent))))  # 1.5: midway from the second to the third
            ends = [success_rates(by_step[steps[int(end)]]) for end in (np.floor(place), np.ceil(place))]
            both = ends[0].keys() & ends[1].keys()
            found[seed] = {task: float(np.interp(place % 1, (0, 1), [end[task] for end in ends])) for task in both}
    return found


def _shortest(runs: Runs, split: str) -> dict[int, float]:
    """The seconds of training before the last evaluation of each seed's fastest variant."""
    found: dict[int, float] = {}
    for by_seed in runs.values():
        for seed, run in by_seed.items():
            records = read_jsonl(run / "metrics.jsonl")
            if measured := _of_split(records, split):
                found[seed] = min(found.get(seed, np.inf), _seconds(records, measured[-1]["step"]))
    return found


def _seconds(records: Sequence[Record], step: int) -> float:
    """Seconds of training until the end of a step."""
    return sum(r.get("step_s") or 0.0 for r in _until(records, step))


def _until(records: Sequence[Record], step: int) -> list[Record]:
    """The training steps until a step, that one included."""
    return [r for r in records if r["phase"] == "train" and r["step"] <= step]


def _of_split(records: Sequence[Record], split: str) -> list[Record]:
    return [r for r in records if r["phase"] == "eval" and r["split"] == split]


def _tokens(record: Record) -> float:
    return sum(v for k, v in record.items() if k.startswith("engine/") and k.endswith("_generated_tokens") and v)


def _mean(values: Sequence[float | None]) -> float:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else float("nan")
