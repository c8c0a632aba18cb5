"""Weights from learner rank 0 straight to every worker of every replica: NCCL between accelerators, gloo between CPUs.

One broadcast a tensor, in the order in which the learner gathers them, so no device holds a second copy of a model. The
receivers know names and shapes beforehand: see `cluster.engines`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import BroadcastOptions, TCPStore

TIMEOUT = timedelta(minutes=5)  # for all to meet, and for one tensor: the learner's gathering of it is in that

Expected = tuple[tuple[str, tuple[int, ...], str], ...]  # name, shape and dtype ("bfloat16") of every weight, in order


@dataclass(frozen=True)
class Meeting:
    """Where `size` processes meet: the learner is rank 0 and listens at the port. `nccl`, else gloo."""

    host: str
    port: int
    size: int
    nccl: bool


class Line:
    """A process's end of the connection. Raises RuntimeError (torch's own) where another end is lost."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting = meeting
        store = TCPStore(meeting.host, meeting.port, meeting.size, is_master=rank == 0, timeout=TIMEOUT)
        self._group = _group(store, meeting, rank)
        self._options = BroadcastOptions()
        self._options.rootRank = 0

    def broadcast(self, tensor: Tensor) -> None:
        """Rank 0's tensor into everyone's: contiguous ones, of one shape and dtype, on this process's device."""
        self._group.broadcast([tensor], self._options).wait()

    def receive(self, expected: Expected, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, tensor) of what rank 0 broadcasts, as they come."""
        for name, shape, dtype in expected:
            tensor = torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=device)
            self.broadcast(tensor)
            yield name, tensor


def _group(store: TCPStore, meeting: Meeting, rank: int) -> Any:
    # Made by hand: the default group of a learner is that of its ranks, an engine's that of its workers.
    if meeting.nccl:
        from torch.distributed import ProcessGroupNCCL

        options = ProcessGroupNCCL.Options()
        options._timeout = TIMEOUT
        # Else `wait` returns at once, and where another end is lost NCCL's watchdog ends this process much later.
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
        try:
            return ProcessGroupNCCL(store, rank, meeting.size, options)
        finally:
            del os.environ["TORCH_NCCL_BLOCKING_WAIT"]  # other groups need not block
    from torch.distributed import ProcessGroupGloo

    return ProcessGroupGloo(store, rank, meeting.size, TIMEOUT)


@dataclass(frozen=True)
class IncomingWeights:
    """What a replica is told: where to meet, as which rank its first worker, and what will come.

    Every worker of an engine takes all weights. Iterated, it is the one worker of an engine on a CPU.
    """

    meeting: Meeting
    first_rank: int
    expected: Expected

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return _line(self.meeting, self.first_rank).receive(self.expected, torch.device("cpu"))


_lines: dict[int, Line] = {}


def _line(meeting: Meeting, rank: int) -> Line:
    """This process's line, kept from step to step."""
    if rank not in _lines or _lines[rank].meeting != meeting:
        _lines.clear()
        _lines[rank] = Line(meeting, rank)
    return _lines[rank]
