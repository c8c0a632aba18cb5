"""Weights from learner rank 0 straight to every worker of every replica: NCCL between accelerators, gloo between CPUs.

One broadcast a tensor, in the order in which the learner gathers them, so no device holds a second copy of a model. The
receivers know names and shapes beforehand: see `cluster.engines`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import BroadcastOptions, TCPStore

from rlanything.weights.transfer import TIMEOUT, Expected, NoSender, Sender


@dataclass(frozen=True)
class BroadcastMeeting:
    """A `Meeting` of `size` processes: learner rank 0 is the first and listens at the port. `nccl`, else gloo."""

    host: str
    port: int
    size: int
    nccl: bool

    def sender(self, rank: int) -> Sender:
        """See `Meeting.sender`."""
        return NoSender() if rank else BroadcastEnd(self, 0)

    def receiver(self, worker: int) -> BroadcastEnd:
        """See `Meeting.receiver`."""
        return BroadcastEnd(self, 1 + worker)


class BroadcastEnd:
    """A process's end of the connection, as `Sender` or `Receiver`. Its RuntimeErrors are torch's own."""

    def __init__(self, meeting: BroadcastMeeting, rank: int) -> None:
        store = TCPStore(meeting.host, meeting.port, meeting.size, is_master=rank == 0, timeout=TIMEOUT)
        self._group = _group(store, meeting, rank)
        self._options = BroadcastOptions()
        self._options.rootRank = 0

    def send(self, name: str, tensor: Tensor) -> None:
        """See `Sender.send`; the tensor is on this process's device."""
        self._broadcast(tensor.contiguous())

    def finish(self) -> None:
        """Nothing: whoever lacks a tensor has said so."""

    def receive(self, expected: Expected, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """See `Receiver.receive`."""
        for name, shape, dtype in expected:
            tensor = torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=device)
            self._broadcast(tensor)
            yield name, tensor

    def _broadcast(self, tensor: Tensor) -> None:
        self._group.broadcast([tensor], self._options).wait()


def _group(store: TCPStore, meeting: BroadcastMeeting, rank: int) -> Any:
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
