"""Weights from learner rank 0 to every worker of every replica: NCCL between accelerators, gloo between CPUs.

Each tensor is one broadcast, in the order in which the learner gathers them, so no device holds a second copy of the
model. The workers must know names and shapes beforehand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import BroadcastOptions, ProcessGroupGloo, TCPStore

from rlanything.weights.transfer import TIMEOUT, Expected, NoSender, Sender


@dataclass(frozen=True, kw_only=True)
class BroadcastMeeting:
    """A `Meeting` at a TCP store, which learner rank 0 serves."""

    host: str
    port: int
    size: int
    """Number of processes: one rank and all workers."""
    nccl: bool
    """NCCL, else gloo."""

    def sender(self, rank: int) -> Sender:
        return NoSender() if rank else BroadcastEnd(self, 0)

    def receiver(self, worker: int) -> BroadcastEnd:
        return BroadcastEnd(self, 1 + worker)


class BroadcastEnd:
    """A process's end of the connection, a `Sender` or a `Receiver`. Its RuntimeErrors are torch's own.

    The process group is made by hand, because the default groups are a learner's ranks and an engine's workers.
    """

    def __init__(self, meeting: BroadcastMeeting, rank: int) -> None:
        store = TCPStore(meeting.host, meeting.port, meeting.size, is_master=rank == 0, timeout=TIMEOUT)
        if meeting.nccl:
            self._group = _nccl_group(store, rank, meeting.size)
        else:
            self._group = ProcessGroupGloo(store, rank, meeting.size, TIMEOUT)
        self._options = BroadcastOptions()
        self._options.rootRank = 0

    def send(self, name: str, tensor: Tensor) -> None:
        self._broadcast(tensor.contiguous())

    def finish(self) -> None:
        pass  # a broadcast raises if a worker did not take its tensor

    def receive(self, expected: Expected, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        for name, shape, dtype in expected:
            tensor = torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=device)
            self._broadcast(tensor)
            yield name, tensor

    def _broadcast(self, tensor: Tensor) -> None:
        self._group.broadcast([tensor], self._options).wait()


def _nccl_group(store: TCPStore, rank: int, size: int) -> Any:
    from torch.distributed import ProcessGroupNCCL  # not in torch's builds for CPUs

    options = ProcessGroupNCCL.Options()
    options._timeout = TIMEOUT
    # Without it `wait` returns at once, and NCCL's watchdog later kills this process if another one is lost.
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    try:
        return ProcessGroupNCCL(store, rank, size, options)
    finally:
        del os.environ["TORCH_NCCL_BLOCKING_WAIT"]  # other groups of this process need not block
