"""The paper's theorems on finished runs, as one picture of four panels and a table.

    python scripts/theorems.py runs/quickstart [runs/other ...] --out docs/theorems.svg

1. How surely the votes order a good and a bad step of one task (Theorem 1, arXiv 2602.02488): the bound
   1 - exp(-m (mu - 1)^2 / 4), and the share of such pairs whose mean votes are in the right order. The environment's
   labels say which steps are good.
2. The reward model's accuracy on good and bad steps (the mean of both) after each window of steps, against the share of
   solved episodes in the groups that it trained on until then (Theorem 2: far from a half it learns from one side).
3. Accepted variants of tasks against steps, with r^2 of a line.
4. Success in training: of original tasks, and of variants.

Steps are taken together in windows. The picture needs matplotlib (`pip install matplotlib`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml

from rlanything.algorithm.advantages import within
from rlanything.algorithm.diagnostics import theorem_bound
from rlanything.config.schema import RewardConfig
from rlanything.runs.metrics import read_jsonl
from rlanything.runs.store import read_groups
from rlanything.types import Direction, Group

NAN = float("nan")


@dataclass(kw_only=True)
class Window:
    """What some steps that follow one another show."""

    step: float
    """The middle one."""
    good: list[int] = field(default_factory=list)
    """1 for each vote that calls a good step good, else 0."""
    bad: list[int] = field(default_factory=list)
    """The same for bad steps: 1 for each that calls one bad."""
    ordered: list[int] = field(default_factory=list)
    """1 for each pair of a good and a bad step of one task whose mean votes are in the right order."""
    votes: int = 0
    """Votes a step, at most."""
    trained: list[float] = field(default_factory=list)
    """Share of solved episodes in each group that the reward model trained on."""
    original: list[float] = field(default_factory=list)
    """The same of each original task."""
    variant: list[float] = field(default_factory=list)
    """The same of each variant, candidates too."""

    def add(self, group: Group, band: Sequence[float]) -> None:
        """Count a group."""
        if not group.whole:
            return
        (self.original if group.task.direction is Direction.ORIGINAL else self.variant).append(group.accuracy)
        if within(group.solved_share, band):
            self.trained.append(group.solved_share)
        votes: dict[tuple[int, int], list[int]] = {}
        for judgement in group.judgements:
            for place, score in judgement.scores.items():
                if score is not None:
                    votes.setdefault(place, []).append(score)
        turns = {
            (t.index, i): turn.label
            for t in group.valid
            for i, turn in enumerate(t.turns)
            if i >= t.begun and (t.index, i) in votes
        }
        good, bad = ([votes[place] for place, label in turns.items() if label == sign] for sign in (1, -1))
        self.votes = max([self.votes, *map(len, votes.values())])
        self.good += [vote > 0 for step in good for vote in step]
        self.bad += [vote < 0 for step in bad for vote in step]
        self.ordered += [np.mean(a) > np.mean(b) for a in good for b in bad]

    @property
    def mu(self) -> float:
        """p+ + p-."""
        return mean(self.good) + mean(self.bad)


def mean(values: Sequence[float]) -> float:
    """nan without values."""
    return float(np.mean(values)) if values else NAN


def windows(run: Path, size: int) -> list[Window]:
    """The windows of a run's training steps."""
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    band = RewardConfig(**config.get("reward", {})).band
    found = []
    steps = sorted(path for path in (run / "rollouts").iterdir() if path.name.startswith("step_"))
    for start in range(0, len(steps), size):
        part = steps[start : start + size]
        window = Window(step=start + (len(part) + 1) / 2)
        for path in part:
            for group in read_groups(path, {}):
                window.add(group, band)
        found.append(window)
    return found


def accepted(run: Path) -> list[int]:
    """Variants that had been accepted after each step."""
    return [int(r["tasks/accepted"]) for r in read_jsonl(run / "metrics.jsonl") if r["phase"] == "train"]


def r_squared(values: Sequence[float]) -> float:
    """How much of a series a straight line explains; nan without spread."""
    if len(values) < 3 or np.std(values) == 0:
        return NAN
    return float(np.corrcoef(np.arange(len(values)), values)[0, 1] ** 2)


def table(found: Sequence[Window]) -> list[str]:
    """The lines of a Markdown table of one run's windows."""
    lines = ["| steps around | p+ | p- | mu | bound | ordered | solved where it trained | originals | variants |"]
    lines.append("|" + " --- |" * 9)
    for w in found:
        shares = [mean(w.good), mean(w.bad)]
        rest = [mean(w.ordered), mean(w.trained), mean(w.original), mean(w.variant)]
        cells = [f"{w.step:g}", *(f"{x:.0%}" for x in shares), f"{w.mu:.2f}", f"{bound(w):.0%}"]
        lines.append("| " + " | ".join([*cells, *("–" if np.isnan(x) else f"{x:.0%}" for x in rest)]) + " |")
    return lines


def bound(window: Window) -> float:
    """Theorem 1's bound for the window's votes."""
    return theorem_bound(window.mu, window.votes)


def draw(runs: dict[str, tuple[list[Window], list[int]]], path: Path) -> None:
    """Draw the four panels. Raises SystemExit without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("error: the picture needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "theorems"  # the same data give the same file
    from matplotlib import pyplot

    figure, ((order, balance), (tasks, success)) = pyplot.subplots(2, 2, figsize=(11, 8), layout="constrained")
    for number, (name, (found, total)) in enumerate(runs.items()):
        colour, steps = f"C{number}", [w.step for w in found]
        order.plot(steps, [mean(w.ordered) for w in found], color=colour, label=f"{name}: pairs in order")
        order.plot(steps, [bound(w) for w in found], color=colour, linestyle="--", label=f"{name}: bound")
        learnt = [(mean(w.trained), later.mu / 2) for w, later in zip(found, found[1:], strict=False)]
        balance.plot(*zip(*learnt, strict=True), "o", color=colour, label=name)
        tasks.plot(range(1, len(total) + 1), total, color=colour, label=f"{name} (r² = {r_squared(total):.2f})")
        success.plot(steps, [mean(w.original) for w in found], color=colour, label=f"{name}: originals")
        success.plot(steps, [mean(w.variant) for w in found], color=colour, linestyle="--", label=f"{name}: variants")
    for axes, title, x, y in (
        (order, "Votes order a good and a bad step", "step", "share"),
        (balance, "What the reward model trained on, and its next accuracy", "share of solved episodes", "accuracy"),
        (tasks, "Accepted variants of tasks", "step", "number"),
        (success, "Success in training", "step", "share of episodes"),
    ):
        axes.set(title=title, xlabel=x, ylabel=y)
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Read the runs, print their tables, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--window", type=int, default=4, help="steps that are taken together (default 4)")
    parser.add_argument("--out", type=Path, required=True, help="the picture, .svg or .png")
    args = parser.parse_args()
    runs = {}
    for run in args.runs:
        if not (run / "rollouts").is_dir():
            parser.error(f"{run}: no folder of a training run")
        runs[run.name] = windows(run, args.window), accepted(run)
        print("\n".join([f"{run.name}:", *table(runs[run.name][0]), ""]))
    draw(runs, args.out)


if __name__ == "__main__":
    main()
