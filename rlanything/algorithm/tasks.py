"""The pool of tasks: a pure state machine with a ledger of everything that happened to a task.

A rotation draws every active task once before it draws any again. Rewrites enter as candidates and are played beside
the active tasks; their measured accuracy decides. An accepted variant replaces the variant that it was made from in the
rotation, but never an original. It is drawn next, because it suits the policy now and a rotation may outlast the run.
For the same reason a share of each draw may be variants of which some episodes, but not all, were solved last time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rlanything.algorithm.summary import GroupSummary
from rlanything.types import Direction, Task

MAX_UNMEASURED = 3  # times that a candidate's group may break before the candidate is dropped


@dataclass
class Candidate:
    """A rewrite that waits for its verdict; `parent_accuracy` is acc(q) at the time of the proposal."""

    task: Task
    parent_accuracy: float
    unmeasured: int = 0


@dataclass(frozen=True)
class RewriteRequest:
    """A group outside the accuracy band: its task should become harder or easier."""

    group: GroupSummary
    direction: Direction

    @property
    def task(self) -> Task:
        """The task to rewrite."""
        return self.group.task


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
    mixed: list[str] = field(default_factory=list)  # variants of which some episodes, not all, were solved last time
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

    def draw(self, n: int, max_candidate: int, revisit: float = 0.0) -> list[Task]:
        """`n` different active tasks (all, if fewer), then the `max_candidate` oldest candidates.

        At most the share `revisit` of the tasks are variants of which some episodes were solved at their last visit,
        but not all, the longest-waiting first. The others are drawn in rotation.
        """
        waiting, most = [id for id in self.mixed if id in self.active], int(revisit * n)
        again = waiting[:most]
        self.mixed = waiting[most:] + again
        drawn = {id: self.active[id] for id in again}
        later: list[str] = []  # drawn already, when a new rotation began within this draw
        while len(drawn) < min(n, len(self.active)):
            if not self.queue:
                self.queue = sorted(self.active)
                random.Random(f"{self.seed}/{self.num_shuffle}").shuffle(self.queue)
                self.num_shuffle += 1
            id = self.queue.pop(0)
            if id in again:
                continue
            if id in drawn:
                later.append(id)
            elif id in self.active:  # else a variant that was replaced meanwhile
                drawn[id] = self.active[id]
        self.queue[:0] = later
        return [*drawn.values(), *(c.task for c in list(self.candidates.values())[:max_candidate])]

    def tasks(self) -> list[Task]:
        """Active tasks and candidates."""
        return [*self.active.values(), *(c.task for c in self.candidates.values())]

    def settle(self, groups: Sequence[GroupSummary], step: int, min_group: int) -> list[tuple[Task, bool]]:
        """Note the accuracies, accept or drop the candidates among the groups; returns (candidate, accepted) pairs."""
        verdicts = []
        for group in groups:
            task, accuracy, measured = group.task, group.accuracy, group.num_valid >= min_group
            if measured and task.direction is not Direction.ORIGINAL:
                self.mixed = [id for id in self.mixed if id != task.id] + [task.id] * (0 < accuracy < 1)
            event = "measured" if measured else "unmeasured"
            self._log(step, event, task, accuracy=accuracy, episodes=group.num_valid)
            candidate = self.candidates.get(task.id)
            if candidate is None:
                continue
            if not measured:
                candidate.unmeasured += 1
                if candidate.unmeasured < MAX_UNMEASURED:
                    continue
            before = candidate.parent_accuracy
            accepted = measured and accepts(task.direction, accuracy, before, self.alpha_low, self.alpha_high)
            del self.candidates[task.id]
            if accepted:
                self._activate(task)
                self._log(step, "accepted", task, accuracy=accuracy, parent_accuracy=before)
            else:
                reason = "accuracy" if measured else "unmeasured"
                self._log(step, "dropped", task, accuracy=accuracy, parent_accuracy=before, reason=reason)
            self.counts["accepted" if accepted else "dropped"] += 1
            verdicts.append((task, accepted))
        return verdicts

    def _activate(self, variant: Task) -> None:
        """Draw an accepted variant next; it takes the place of its parent unless that is an original."""
        parent = self.active.get(variant.parent_id)
        if parent is not None and parent.direction is not Direction.ORIGINAL:
            del self.active[parent.id]
        self.active[variant.id] = variant
        self.queue.insert(0, variant.id)

    def rewrite_requests(self, groups: Sequence[GroupSummary], limit: int, min_group: int) -> list[RewriteRequest]:
        """Measured active tasks outside the band that have no candidate yet: at most `limit`, extremes first."""
        waiting = {c.task.parent_id for c in self.candidates.values()}
        requests = []
        for group in groups:
            if group.num_valid < min_group or group.task.id not in self.active or group.task.id in waiting:
                continue
            if group.accuracy > self.alpha_high:
                requests.append(RewriteRequest(group, Direction.HARDER))
            elif group.accuracy < self.alpha_low:
                requests.append(RewriteRequest(group, Direction.EASIER))
        # A task of accuracy 0 or 1 teaches nothing: the farther from the middle, the more a variant is worth.
        requests.sort(key=lambda request: -abs(request.group.accuracy - 0.5))
        return requests[: max(0, limit)]

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

    def reject(self, request: RewriteRequest, step: int, reasons: dict[str, int]) -> None:
        """Note that no proposal for the task was valid; `reasons` counts why."""
        self.counts["rejected"] += 1
        toward, accuracy = str(request.direction), request.group.accuracy
        self._log(step, "rejected", request.task, toward=toward, accuracy=accuracy, reasons=reasons)

    def drain_events(self) -> list[dict[str, Any]]:
        """The events since the last call, for the ledger."""
        events, self.events = self.events, []
        return events

    def leave_out(self, refused: Callable[[Task], str]) -> None:
        """Remove the tasks that cannot be played. Raises ValueError if none is left."""
        self.active = {id: task for id, task in self.active.items() if not refused(task)}
        self.candidates = {id: c for id, c in self.candidates.items() if not refused(c.task)}
        if not self.active:
            raise ValueError("the task pool is empty: no task can be played")

    def state_dict(self) -> dict[str, Any]:
        """Everything, as JSON-ready data (call `drain_events` first: events belong to the ledger)."""
        return {
            "active": [asdict(t) for t in self.active.values()],
            "candidates": [asdict(c) for c in self.candidates.values()],
            "queue": list(self.queue),
            "mixed": list(self.mixed),
            "num_shuffle": self.num_shuffle,
            "num_variant": self.num_variant,
            "counts": dict(self.counts),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        self.active = {t["id"]: _task(t) for t in state["active"]}
        self.candidates = {
            c["task"]["id"]: Candidate(_task(c["task"]), c["parent_accuracy"], c["unmeasured"])
            for c in state["candidates"]
        }
        self.queue, self.num_shuffle = list(state["queue"]), state["num_shuffle"]
        self.mixed = list(state.get("mixed", []))  # older checkpoints have none
        self.num_variant, self.counts = state["num_variant"], dict(state["counts"])

    def _log(self, step: int, event: str, task: Task, **details: Any) -> None:
        details = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in details.items()}
        lineage = {"task": task.id, "root": task.root_id, "parent": task.parent_id, "direction": str(task.direction)}
        self.events.append({"step": step, "event": event, **lineage, **details})


def _task(data: dict[str, Any]) -> Task:
    return Task(**{**data, "direction": Direction(data["direction"])})
