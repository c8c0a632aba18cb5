"""Small hand-made groups for tests of pure logic."""

from __future__ import annotations

from collections.abc import Sequence

from rlanything.types import Evaluation, Group, Status, Task, Trajectory, Turn

Scores = Sequence[int | None]


def turn(scores: Scores = (), label: int | None = None) -> Turn:
    """A turn of 3 prompt and 2 response tokens with one evaluation a score."""
    evaluations = [Evaluation([1, 2], [3], [-0.5], f"score {s}", s, "" if s is not None else "none") for s in scores]
    return Turn([1, 2, 3], [4, 5], [-0.1, -0.2], "text", "look", "seen", label=label, evaluations=evaluations)


def trajectory(outcome: int, turns: Sequence[Scores], index: int = 0, status: Status = Status.COMPLETED) -> Trajectory:
    """An episode with one turn an entry of `turns`, which holds that turn's scores."""
    return Trajectory("q", index, "room", [turn(s) for s in turns], outcome, status)


def group(*trajectories: Trajectory, task: Task | None = None) -> Group:
    """The episodes of one task, indexed in order."""
    for i, t in enumerate(trajectories):
        t.index = i
    return Group(task or Task("q", {}), list(trajectories))
