"""Sends weights from learner ranks directly to the worker processes of engines.

With `broadcast`, rank 0 sends to all workers: for engines that have accelerators of their own. With `ipc`, each worker
takes them from a rank on its own accelerator, or on its own machine if there are none, by shared memory (`pieces`).
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

TIMEOUT = timedelta(minutes=5)  # for all to connect, and for each message, which the learner may have to gather first

Expected = tuple[tuple[str, tuple[int, ...], str], ...]  # name, shape and dtype ("bfloat16") of every weight, in order


class Sender(Protocol):
    """A learner rank's end of the connection. Raises RuntimeError if a worker is lost."""

    def send(self, name: str, tensor: Tensor) -> None:
        """Send the next weight. The tensor may change once this returns."""

    def finish(self) -> None:
        """Return when the workers have taken all weights."""


class NoSender:
    """The `Sender` of a rank without workers: it drops the weights."""

    def send(self, name: str, tensor: Tensor) -> None:
        pass

    def finish(self) -> None:
        pass


class Receiver(Protocol):
    """An engine worker's end of the connection. Raises RuntimeError if the learner is lost."""

    def receive(self, expected: Expected, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, tensor on `device`) of each weight that arrives."""


class Meeting(Hashable, Protocol):
    """How ranks and workers find each other. Both methods wait for the other side.

    They raise RuntimeError if it does not come within `TIMEOUT`.
    """

    def sender(self, rank: int) -> Sender:
        """Connect as a learner rank."""

    def receiver(self, worker: int) -> Receiver:
        """Connect as a worker; workers are numbered through all replicas of an engine."""


@dataclass(frozen=True, kw_only=True)
class IncomingWeights:
    """What a replica needs to know to receive weights. Each of its workers receives all of them.

    Iterating connects as the only worker of an engine on a CPU, and keeps the connection for the next time.
    """

    meeting: Meeting
    first_worker: int
    """Number of the replica's first worker."""
    expected: Expected

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return _receiver(self.meeting, self.first_worker).receive(self.expected, torch.device("cpu"))


@lru_cache(maxsize=1)
def _receiver(meeting: Meeting, worker: int) -> Receiver:
    return meeting.receiver(worker)
