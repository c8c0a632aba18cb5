"""What the processes of a run must know of each other, whichever of them has just been started anew."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ray

from rlanything.cluster.weights import StagedWeights

NAME = (
    "board"  # by which processes find it: Ray warns where an actor that may be started anew is given another's handle
)


class Board:
    """A Ray actor: the weights that every role's engine should hold now, whether it sleeps, and the faults so far."""

    def __init__(self) -> None:
        self._current: dict[str, tuple[int, StagedWeights]] = {}
        self._asleep: set[str] = set()
        self._faults: Counter[str] = Counter()

    def post(self, role: str, version: int, weights: StagedWeights) -> None:
        """Replace a role's; the object store frees what nobody holds any more."""
        self._current[role] = version, weights

    def current(self, role: str) -> tuple[int, StagedWeights] | None:
        """Version and weights; None where a role has those of its model's files."""
        return self._current.get(role)

    def set_sleeps(self, role: str, sleeps: bool) -> None:
        """Before a role's engines are told to."""
        (self._asleep.add if sleeps else self._asleep.discard)(role)

    def sleeps(self, role: str) -> bool:
        """Whether a role's engines gave their memory to the learners."""
        return role in self._asleep

    def count(self, fault: str) -> None:
        """One more of them."""
        self._faults[fault] += 1

    def faults(self) -> Counter[str]:
        """How many of each since the run began."""
        return self._faults


def board() -> Any:
    """The run's own, from any of its processes."""
    return ray.get_actor(NAME)


def was_restarted(fault: str) -> bool:
    """Whether Ray has started this actor anew; counted as `fault`. Call it once, from its `__init__`."""
    restarted: bool = ray.get_runtime_context().was_current_actor_reconstructed
    if restarted:
        ray.get(board().count.remote(fault))
    return restarted
