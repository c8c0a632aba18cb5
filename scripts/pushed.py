"""Tells what a run's advantages push up and down: by the kind of action, the turn's index, and the kind of task.

    python scripts/pushed.py runs/quickstart --steps 10 20

prints, for each kind of turns in these steps (both included; all steps if they are left out), how many there are, their
mean advantage, and how many of these advantages are above 0. Turns are told apart by their label, where the
environment has one, and by whether their episode was solved. Bad turns with a positive advantage are what the policy
should not learn: if there are many, the rule, the labels or the rewards are wrong, and no longer training mends it.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rlanything.errors import RunError
from rlanything.processes.guard import run_guarded
from rlanything.runs.store import read_groups, read_rows
from rlanything.types import Trajectory, Turn

LABELS = {1: "good", -1: "bad", None: "no label"}
Place = tuple[str, Trajectory, int]
"""The kind of task, an episode, and the index of one of its turns."""


def _turn(place: Place) -> Turn:
    return place[1].turns[place[2]]


def _label(place: Place) -> str:
    return LABELS[_turn(place).label]


PARTS: Mapping[str, Callable[[Place], str]] = {
    "action": lambda place: "invalid" if _turn(place).invalid else _turn(place).kind or "any",
    "turn": lambda place: str(place[2] + 1) if place[2] < 8 else "9 and later",
    "task": lambda place: place[0],
}


def table(places: Iterable[Place], name: str) -> list[tuple[str, ...]]:
    """The lines of a table, its header first: places apart by a part, the label, and whether the episode was solved."""
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for place in places:
        if (advantage := _turn(place).advantage) is not None:
            key = (PARTS[name](place), _label(place), "solved" if place[1].success else "failed")
            found[key].append(advantage)
    lines = [
        (*key, str(len(values)), f"{sum(values) / len(values):+.2f}", f"{sum(v > 0 for v in values) / len(values):.0%}")
        for key, values in sorted(found.items())
    ]
    return [(name, "label", "episode", "turns", "mean advantage", "above 0"), *lines]


def places(run: Path, steps: Sequence[int]) -> list[Place]:
    """All turns of a run's training steps `steps` [first, last]. Raises RunError if there are none."""
    found: list[Place] = []
    for file in sorted((run / "rollouts").glob("step_*.parquet")):
        if steps[0] <= int(file.stem.removeprefix("step_")) <= steps[1]:
            kinds = {row["task_id"]: row["kind"] for row in read_rows(file)}
            found += [
                (kinds[t.task_id], t, i) for g in read_groups(file, {}) for t in g.valid for i in range(len(t.turns))
            ]
    if not found:
        raise RunError(
            f"{run}: has no episodes of the steps {steps[0]} to {steps[1]} in rollouts/; name a run's folder"
        )
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--steps", type=int, nargs=2, default=(1, 10**6), metavar=("FIRST", "LAST"))
    args = parser.parse_args()
    found = places(args.run, args.steps)
    for name in PARTS:
        header, *lines = table(found, name)
        for line in (header, ("---",) * len(header), *lines):
            print(f"| {' | '.join(line)} |")
        print()


if __name__ == "__main__":
    run_guarded(main, "reads a run, and changes nothing")
