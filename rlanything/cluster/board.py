"""The state of a run that its processes share: a restarted process reads here what it must know."""

from collections import Counter
from typing import Any

import ray

from rlanything.cluster.weights import StagedWeights

NAME = "board"  # processes find the actor by name: Ray warns of a restartable actor that is given another's handle


class Board:
    """A Ray actor. It holds each role's current weights, which roles' engines sleep, and counts faults."""

    def __init__(self) -> None:
        self._current: dict[str, tuple[int, StagedWeights]] = {}
        self._asleep: dict[str, bool] = {}
        self._faults: Counter[str] = Counter()

    def post(self, role: str, version: int, weights: StagedWeights) -> None:
        """Replace a role's weights. The object store frees the old ones once nobody holds them."""
        self._current[role] = version, weights

    def current(self, role: str) -> tuple[int, StagedWeights] | None:
        """Version and weights of a role; None while it has the weights of its model's files."""
        return self._current.get(role)

    def set_asleep(self, role: str, asleep: bool) -> None:
        """Record whether a role's engines sleep. Call it before the engines are told to."""
        self._asleep[role] = asleep

    def asleep(self, role: str) -> bool:
        return self._asleep.get(role, False)

    def count(self, fault: str) -> None:
        self._faults[fault] += 1

    def faults(self) -> Counter[str]:
        """The number of faults by name since the run began."""
        return self._faults


def board() -> Any:
    """A handle of the run's board, for any process of the run."""
    return ray.get_actor(NAME)


def was_restarted(fault: str) -> bool:
    """Return whether Ray restarted the calling actor, and count a `fault` if so. Call it once, in its `__init__`."""
    restarted: bool = ray.get_runtime_context().was_current_actor_reconstructed
    if restarted:
        ray.get(board().count.remote(fault))
    return restarted
