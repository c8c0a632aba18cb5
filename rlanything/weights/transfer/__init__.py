"""Weights on their way from learner ranks straight to the workers of engines.

`broadcast`: from rank 0 to all of them, where engines have accelerators of their own. `ipc`: from the rank beside each
of them, whose accelerator it shares. `pieces` is the memory that goes from process to process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch
from torch import Tensor

TIMEOUT = timedelta(minutes=5)  # for all to meet, and for one message: the learner's gathering of it is in that

Expected = tuple[tuple[str, tuple[int, ...], str], ...]  # name, shape and dtype ("bfloat16") of every weight, in order


class Sender(Protocol):
    """A learner rank's end. Raises RuntimeError where another end is lost."""

    def send(self, name: str, tensor: Tensor) -> None:
        """The next weight; it may change once this returns."""
        ...

    def finish(self) -> None:
        """After the last one: returns when all have been taken."""
        ...


class NoSender:
    """The `Sender` of a rank that has nobody to send to."""

    def send(self, name: str, tensor: Tensor) -> None:
        """See `Sender`."""

    def finish(self) -> None:
        """See `Sender`."""


class Receiver(Protocol):
    """An engine worker's end. Raises RuntimeError where the learner is lost."""

    def receive(self, expected: Expected, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, tensor) of what comes, on this worker's device."""
        ...


class Meeting(Protocol):
    """Where they find each other. Both calls wait for the other side; RuntimeError where it does not come."""

    def sender(self, rank: int) -> Sender:
        """Of a learner rank."""
        ...

    def receiver(self, worker: int) -> Receiver:
        """Of a worker, numbered through all replicas of an engine."""
        ...


@dataclass(frozen=True)
class IncomingWeights:
    """What a replica is told: where to meet, the number of its first worker, and what will come.

    Every worker of an engine takes all weights. Iterated, it is the one worker of an engine on a CPU.
    """

    meeting: Meeting
    first_worker: int
    expected: Expected

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return _receiver(self.meeting, self.first_worker).receive(self.expected, torch.device("cpu"))


_receivers: dict[tuple[Meeting, int], Receiver] = {}


def _receiver(meeting: Meeting, worker: int) -> Receiver:
    """This process's, kept from step to step."""
    if (meeting, worker) not in _receivers:
        _receivers.clear()
        _receivers[meeting, worker] = meeting.receiver(worker)
    return _receivers[meeting, worker]
