"""How well do judges and advantage rules rank the steps of episodes? Measured against the true advantage of each step.

    make quickstart && python scripts/true_advantages.py config=configs/quickstart/alfworld/loop.yaml

It plays groups of episodes as a training step does. Then it measures the true advantage of every turn by continuations
(`rlanything.rollout.continuations`).

It prints a table of correlations with the true advantage, over all turns: of the environment's step labels, of the
judge's votes, of differences of the group's value, and of what each rule makes of outcomes, labels and votes. The first
row says how much the noise of the measurement leaves of a perfect signal's 1. Ranks say less where most steps change
nothing, because these are then ranked by noise. Every turn is a line of `turns.jsonl` in the run's folder.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np

from rlanything.algorithm.advantages import RULES, assign_advantages
from rlanything.config.load import load_config
from rlanything.config.schema import Config
from rlanything.domains.answers import parse_score
from rlanything.domains.base import admitted
from rlanything.engines.chat import Chat
from rlanything.errors import ClearError
from rlanything.evaluation.play import drawn_tasks
from rlanything.plan.plan import make_plan
from rlanything.processes.coroutines import run_coroutine
from rlanything.rollout.collect import Batch, Collector
from rlanything.rollout.continuations import Continuations, Measured, chance, states
from rlanything.rollout.judging import LabelJudge
from rlanything.run import Run, use_devices
from rlanything.runs.folder import RunFolder
from rlanything.runs.progress import Progress
from rlanything.types import Group, Place, Turn

NUM_BOOTSTRAP = 1000
OF_STEPS = ("step_index", "step_index_absorbing", "separate", "process", "same_state", "grouped_gae")
Values = dict[tuple[str, Place], float]
"""What a signal says of turns, by task and place."""


def signals(groups: Sequence[Group], config: Config, judge: Chat | None) -> Iterator[tuple[str, Values]]:
    """(name, value of each turn) of everything that may say what a step is worth. `judge` reads the votes' tokens."""
    sources = {"labels": [run_coroutine(labelled(group, config)) for group in groups], "votes": groups}
    for source, judged in sources.items():
        _assign(judged, config, "trajectory", 1.0)
        yield f"the {source}", _values(judged, lambda turn: turn.signal)
    if judge:
        yield "the probability of the votes", probabilities(groups, judge)
    _assign(groups, config, "grouped_gae", 0.0, discount=1.0, lam=0.0)
    yield "differences of the group's value", _values(groups, lambda turn: turn.advantage)
    for rule in RULES:
        _assign(groups, config, rule, 0.0)
        yield f"`{rule}` of outcomes", _values(groups, lambda turn: turn.advantage)
    for source, judged in sources.items():
        for rule in OF_STEPS:
            _assign(judged, config, rule, config.algorithm.step_weight)
            yield f"`{rule}` of outcomes and {source}", _values(judged, lambda turn: turn.advantage)


def _assign(groups: Sequence[Group], config: Config, rule: str, step_weight: float, **given: float) -> None:
    """Advantages by a rule, with the given options, else the configuration's own if it is the configuration's rule."""
    options = given or (config.algorithm.options if rule == config.algorithm.advantage else {})
    changed = {"advantage": rule, "options": options, "step_weight": step_weight, "negative_weight": 1.0}
    assign_advantages(groups, config.algorithm.model_copy(update=changed))


def _values(groups: Sequence[Group], value: Callable[[Turn], float | None]) -> Values:
    turns = (
        (group.task.id, (t.index, i), turn) for group in groups for t in group.valid for i, turn in enumerate(t.turns)
    )
    return {(task, place): found for task, place, turn in turns if (found := value(turn)) is not None}


async def labelled(group: Group, config: Config) -> Group:
    """The group with its environment's labels in the place of judgements; with none if it labels no step."""
    found = replace(group, judgements=[])
    if any(turn.label is not None for t in group.valid for turn in t.turns):
        exact = config.reward.model_copy(update={"num_evaluation": 1, "label_noise": 0.0})
        await LabelJudge(exact, "").finish(found)
    return found


def probabilities(groups: Sequence[Group], judge: Chat) -> Values:
    """The probability that a step is good: that of each vote's tokens from the last box on, as a mean over votes.

    A judgement whose last box is not its score, because the score is a comparison, has none.
    """
    found: dict[tuple[str, Place], list[float]] = {}
    for group in groups:
        for judgement in group.judgements:
            start, ids = judgement.text.rfind("\\boxed{"), judgement.response_ids
            first = next((i for i in range(len(ids)) if len(judge.response_text(ids[: i + 1])) > start), 0)
            sure = math.exp(sum(judgement.logprobs[first:]))
            vote, _ = parse_score(judgement.text)
            for place, score in judgement.scores.items():
                if score is not None and score == vote:
                    found.setdefault((group.task.id, place), []).append(sure if score > 0 else 1 - sure)
    return {key: sum(values) / len(values) for key, values in found.items()}


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0; equal values share the mean of theirs."""
    _, place, num = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(num) - (num + 1) / 2)[place]


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's; nan if one of them has no spread."""
    return float(np.corrcoef(x, y)[0, 1]) if x.std() and y.std() else math.nan


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Rank correlation; nan if one of them has no spread."""
    return correlation(ranks(x), ranks(y))


def interval(statistic: Callable[[np.ndarray], float], tasks: Sequence[str]) -> tuple[float, float]:
    """95 % interval of a statistic of chosen turns, tasks resampled with all their turns (percentile bootstrap)."""
    rows = [np.flatnonzero(np.array(tasks) == task) for task in sorted(set(tasks))]
    rng = np.random.default_rng(0)
    drawn = (np.concatenate([rows[i] for i in rng.integers(len(rows), size=len(rows))]) for _ in range(NUM_BOOTSTRAP))
    low, high = np.nanpercentile([statistic(chosen) for chosen in drawn], [2.5, 97.5])
    return float(low), float(high)


def reliable(halves: Sequence[np.ndarray]) -> float:
    """The correlation that a perfect signal would have with what was measured: the root of the reliability that two
    halves of the continuations show (Spearman and Brown's formula)."""
    agreement = max(0.0, correlation(*halves))
    return math.sqrt(2 * agreement / (1 + agreement))


def table(measured: Sequence[Measured], found: Sequence[tuple[str, Values]]) -> list[str]:
    """The lines of a Markdown table; a signal that says nothing of any turn has none."""
    lines = ["| signal | correlation, 95 % by task | of ranks | turns |", "| --- | --- | --- | --- |"]
    halved = [m for m in measured if not math.isnan(m.half(0) + m.half(1))]  # no half was lost to the infrastructure
    halves = [np.array([m.half(k) for m in halved]) for k in (0, 1)]
    low, high = interval(lambda chosen: reliable([half[chosen] for half in halves]), [m.task for m in halved])
    perfect = f"{reliable(halves):.2f} ({low:.2f} to {high:.2f})"
    lines.append(f"| a perfect one, measured as well | {perfect} | | {len(measured)} |")
    for name, values in found:
        known = [m for m in measured if (m.task, m.place) in values]
        x = np.array([values[m.task, m.place] for m in known])
        y = np.array([m.advantage for m in known])
        if len(known) < 2 or math.isnan(correlation(x, y)):
            continue
        tasks, cells = [m.task for m in known], []
        for statistic in (correlation, spearman):
            low, high = interval(lambda chosen, of=statistic, x=x, y=y: of(x[chosen], y[chosen]), tasks)
            cells.append(f"{statistic(x, y):.2f} ({low:.2f} to {high:.2f})")
        lines.append(f"| {name} | {' | '.join(cells)} | {len(known)} |")
    return lines


def worth(measured: Sequence[Measured]) -> list[str]:
    """What steps of each label are worth, in points of the chance of success."""
    lines = []
    for label in sorted({m.turn.label for m in measured if m.turn.label is not None}, reverse=True):
        gains = np.array([m.advantage for m in measured if m.turn.label == label])
        error = gains.std() / math.sqrt(len(gains))
        lines.append(
            f"steps labelled {label:+d}: {100 * gains.mean():+.1f} points (± {196 * error:.1f}), {len(gains)} turns"
        )
    return lines


def main() -> None:
    """Play, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=16, help="groups that are played (default 16)")
    parser.add_argument("--continuations", type=int, default=16, help="episodes from every state (default 16)")
    parser.add_argument("--split", default="", help="split of the tasks (default: dataset.train_split)")
    parser.add_argument("words", nargs="*", help="config=... and key=value pairs")
    args = parser.parse_args()
    if args.tasks < 2 or args.continuations < 2:
        parser.error("two tasks and two continuations at least")
    config = load_config([*args.words, "evaluation.judge=true"], learns=False)
    split = args.split or config.dataset.train_split
    config.evaluation.splits = [split]
    config.rollout.num_branch = 0
    plan, folder, progress = make_plan(config, learns=False), RunFolder(config), Progress()
    with use_devices(plan), folder.open(), closing(Run(plan, folder, progress.line)) as run:
        drawn = partial(drawn_tasks, run.domain, split, args.tasks, config.experiment.seed)
        tasks = admitted(run.domain, drawn, progress.line)
        num = config.rollout.num_rollout_per_trial
        batch = Batch(tasks=tasks, num=num, seed="measured", rollout=config.rollout)
        policy, reward = run.models["policy"], run.models.get("reward")

        async def play() -> tuple[list[Group], list[Measured]]:
            with progress.phase("episodes", len(tasks) * num) as bar:
                groups = await Collector(run.domain, policy, reward, config).groups(batch, bar.advance)
            total = args.continuations * sum(len(states(group)) for group in groups)
            done = itertools.count(1)
            with progress.phase("continuations", total) as bar:

                def on_end() -> None:
                    bar.advance()
                    if (number := next(done)) * 10 % total < 10:  # each tenth, for logs without a bar
                        progress.line(f"{number} of {total} continuations after {progress.elapsed:.0f} s")

                seed = str(config.experiment.seed)
                continuations = Continuations(run.domain, policy, config.rollout, args.continuations, seed, on_end)
                measured = await asyncio.gather(*map(continuations.measure, groups))
                return groups, [m for of_group in measured for m in of_group]

        groups, measured = run_coroutine(play())
    found = list(signals(groups, config, reward.chat if reward else None))
    with (folder.path / "turns.jsonl").open("w") as file:
        for m in measured:
            values = {name: of[m.task, m.place] for name, of in found if (m.task, m.place) in of}
            row = {
                "task": m.task,
                "episode": m.place[0],
                "turn": m.place[1],
                "action": m.turn.action,
                "label": m.turn.label,
            }
            file.write(
                json.dumps(row | {"before": chance(*m.before), "after": chance(*m.after), "signals": values}) + "\n"
            )
    solved = np.mean([t.success for group in groups for t in group.valid])
    print(f"{len(groups)} tasks, {solved:.1%} of the episodes solved, {args.continuations} continuations a state")
    print("\n".join([*worth(measured), "", *table(measured, found)]))


if __name__ == "__main__":
    try:
        main()
    except ClearError as error:
        raise SystemExit(f"error: {error}") from None
