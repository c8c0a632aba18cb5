"""The pool of tasks: a pure state machine with a ledger of everything that happened to a task.

A rotation draws every active task once before it draws any again. Rewrites enter as candidates, are rolled out
beside the active tasks, and their measured accuracy decides (DESIGN section 1, Adaptation). An accepted
variant joins the rotation in the place of the variant it was made from, and is drawn next: it is known to be at the
policy's edge now, and a rotation of thousands may outlast the run. Originals stay in the rotation for good.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rlanything.types import Direction, Group, Task

MAX_UNMEASURED = 3  # times that a candidate's group may break before the candidate is dropped


@dataclass
class Candidate:
    """A rewrite that waits for its verdict; `parent_accuracy` is acc(q) at the time of the proposal."""

    task: Task
    parent_accuracy: float
    unmeasured: int = 0


@dataclass(frozen=True)
class Wish:
    """A task outside the band: rewrite it in this direction."""

    task: Task
    direction: Direction
    accuracy: float


def accepts(direction: Direction, accuracy: float, parent_accuracy: float, low: float, high: float) -> bool:
    """The acceptance gate, strict on both sides: harder needs low < acc' < acc, easier acc < acc' < high."""
    if direction is Direction.HARDER:
        return low < accuracy < parent_accuracy
    return parent_accuracy < accuracy < high


@dataclass
class TaskPool:
    """Active tasks, candidates, and events that wait to be written to the ledger."""

    alpha_low: float
    alpha_high: float
    seed: int
    active: dict[str, Task] = field(default_factory=dict)
    candidates: dict[str, Candidate] = field(default_factory=dict)
    queue: list[str] = field(default_factory=list)
    num_shuffle: int = 0
    num_variant: int = 0
    counts: dict[str, int] = field(default_factory=lambda: {"accepted": 0, "dropped": 0, "rejected": 0})
    events: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, originals: Sequence[Task], alpha_low: float, alpha_high: float, seed: int) -> TaskPool:
        """A pool of originals. Raises ValueError if there is none, or if an id occurs twice."""
        if not originals:
            raise ValueError("the task pool is empty: the training split holds no task")
        active = {t.id: t for t in originals}
        if len(active) != len(originals):
            raise ValueError(
                f"{len(originals) - len(active)} of {len(originals)} training tasks share an id with another"
            )
        return cls(alpha_low, alpha_high, seed, active)

    def draw(self, n: int, max_candidate: int) -> list[Task]:
        """n different active tasks (all, if there are fewer) in rotation, each once before any again; then the
        `max_candidate` oldest candidates."""
        drawn: dict[str, Task] = {}
        later: list[str] = []  # drawn already, when a new rotation began within this draw
        while len(drawn) < min(n, len(self.active)):
            if not self.queue:
                self.queue = sorted(self.active)
                random.Random(f"{self.seed}/{self.num_shuffle}").shuffle(self.queue)
                self.num_shuffle += 1
            id = self.queue.pop(0)
            if id in drawn:
                later.append(id)
            elif id in self.active:  # else a variant that was replaced meanwhile
                drawn[id] = self.active[id]
        self.queue[:0] = later
        return [*drawn.values(), *(c.task for c in list(self.candidates.values())[:max_candidate])]

    def tasks(self) -> list[Task]:
        """Active tasks and candidates."""
        return [*self.active.values(), *(c.task for c in self.candidates.values())]

    def settle(self, groups: Sequence[Group], step: int, min_group: int) -> list[tuple[Task, bool]]:
        """Note the accuracies, accept or drop the candidates among the groups; returns (candidate, accepted) pairs."""
        verdicts = []
        for group in groups:
            task, accuracy = group.task, group.accuracy
            measured = len(group.valid) >= min_group
            self._log(
                step, "measured" if measured else "unmeasured", task, accuracy=accuracy, episodes=len(group.valid)
            )
            candidate = self.candidates.get(task.id)
            if candidate is None:
                continue
            if not measured:
                candidate.unmeasured += 1
                if candidate.unmeasured >= MAX_UNMEASURED:
                    self._drop(candidate, step, accuracy, "unmeasured")
                    verdicts.append((task, False))
            elif accepts(task.direction, accuracy, candidate.parent_accuracy, self.alpha_low, self.alpha_high):
                self._accept(candidate, step, accuracy)
                verdicts.append((task, True))
            else:
                self._drop(candidate, step, accuracy, "accuracy")
                verdicts.append((task, False))
        return verdicts

    def wishes(self, groups: Sequence[Group], limit: int, min_group: int) -> list[Wish]:
        """Measured active tasks outside the band that have no candidate yet, at most `limit`, the hardest first."""
        waiting = {c.task.parent_id for c in self.candidates.values()}
        wishes = []
        for group in groups:
            task, accuracy = group.task, group.accuracy
            if len(group.valid) < min_group or task.id not in self.active or task.id in waiting:
                continue
            if accuracy > self.alpha_high:
                wishes.append(Wish(task, Direction.HARDER, accuracy))
            elif accuracy < self.alpha_low:
                wishes.append(Wish(task, Direction.EASIER, accuracy))
        # A task of accuracy 0 or 1 teaches nothing: the farther from the middle, the more a variant is worth.
        wishes.sort(key=lambda w: -abs(w.accuracy - 0.5))
        return wishes[: max(0, limit)]

    def next_id(self, task: Task) -> str:
        """A fresh id for a variant of the task."""
        self.num_variant += 1
        return f"{task.root_id}~{self.num_variant}"

    def propose(self, task: Task, parent_accuracy: float, step: int, description: str) -> None:
        """Add a validated rewrite as a candidate."""
        if task.parent_id not in self.active:
            raise ValueError(f"candidate {task.id}: its parent {task.parent_id!r} is not an active task")
        self.candidates[task.id] = Candidate(task, parent_accuracy)
        self._log(step, "proposed", task, parent_accuracy=parent_accuracy, description=description)

    def reject(self, wish: Wish, step: int, reasons: dict[str, int]) -> None:
        """Note that no proposal for the task was valid; `reasons` counts why."""
        self.counts["rejected"] += 1
        self._log(step, "rejected", wish.task, toward=str(wish.direction), accuracy=wish.accuracy, reasons=reasons)

    def drain_events(self) -> list[dict[str, Any]]:
        """The events since the last call, for the ledger."""
        events, self.events = self.events, []
        return events

    def state_dict(self) -> dict[str, Any]:
        """Everything, as JSON-ready data (call `drain_events` first: events belong to the ledger)."""
        return {
            "active": [asdict(t) for t in self.active.values()],
            "candidates": [asdict(c) for c in self.candidates.values()],
            "queue": list(self.queue),
            "num_shuffle": self.num_shuffle,
            "num_variant": self.num_variant,
            "counts": dict(self.counts),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.active = {t["id"]: _task(t) for t in state["active"]}
        self.candidates = {
            c["task"]["id"]: Candidate(_task(c["task"]), c["parent_accuracy"], c["unmeasured"])
            for c in state["candidates"]
        }
        self.queue, self.num_shuffle = list(state["queue"]), state["num_shuffle"]
        self.num_variant, self.counts = state["num_variant"], dict(state["counts"])

    def _accept(self, candidate: Candidate, step: int, accuracy: float) -> None:
        task = candidate.task
        parent = self.active.get(task.parent_id)
        if parent is not None and parent.direction is not Direction.ORIGINAL:
            del self.active[parent.id]
        self.active[task.id] = task
        self.queue.insert(0, task.id)
        del self.candidates[task.id]
        self.counts["accepted"] += 1
        self._log(step, "accepted", task, accuracy=accuracy, parent_accuracy=candidate.parent_accuracy)

    def _drop(self, candidate: Candidate, step: int, accuracy: float, reason: str) -> None:
        del self.candidates[candidate.task.id]
        self.counts["dropped"] += 1
        self._log(
            step, "dropped", candidate.task, accuracy=accuracy, parent_accuracy=candidate.parent_accuracy, reason=reason
        )

    def _log(self, step: int, event: str, task: Task, **details: Any) -> None:
        details = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in details.items()}
        lineage = {"task": task.id, "root": task.root_id, "parent": task.parent_id, "direction": str(task.direction)}
        self.events.append({"step": step, "event": event, **lineage, **details})


def _task(data: dict[str, Any]) -> Task:
    return Task(**{**data, "direction": Direction(data["direction"])})
