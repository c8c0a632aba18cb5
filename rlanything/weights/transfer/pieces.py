"""Weights packed into memory that other processes can map: of this machine without a name, or of one accelerator by
CUDA IPC. A piece's memory is there as long as its maker or anyone who mapped it needs it.

Source: pytorch.org/docs, "torch.multiprocessing", sharing CUDA tensors: the maker's allocator keeps what it shared
until the last process that mapped it lets go; where that one is killed meanwhile, until the maker ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlanything.processes.shared_memory import SharedMemory
from rlanything.weights.transfer import Expected

PIECE_BYTES = 1 << 28  # few round trips, and a second one fits beside it
ALIGNMENT = 64  # bytes, more than any dtype wants

Place = str | list[Any]  # a path that this machine's processes can open, or what torch makes of an accelerator's memory
DEVICE = 6  # of the arguments of torch's rebuild_cuda_tensor: as the maker's process numbers it


class Piece:
    """Room for a tensor like `first`, and for more after it. `close` it when others have mapped it."""

    def __init__(self, first: Tensor, on_accelerator: bool) -> None:
        size = max(PIECE_BYTES, first.nbytes)
        self._memory: SharedMemory | None = None
        if on_accelerator:
            self._data = torch.empty(size, dtype=torch.uint8, device=first.device)
        else:
            self._memory = SharedMemory(create=True, size=size)
            self._data = _bytes(self._memory)
        self._expected: list[tuple[str, tuple[int, ...], str]] = []
        self._end = 0

    def fits(self, tensor: Tensor) -> bool:
        """Whether there is room for it."""
        return self._end + tensor.nbytes <= len(self._data)

    def add(self, name: str, tensor: Tensor) -> None:
        """Copy it in."""
        data = tensor.detach().contiguous().view(-1).view(torch.uint8)
        self._data[self._end : self._end + len(data)].copy_(data)
        self._expected.append((name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")))
        self._end = _aligned(self._end + len(data))

    @property
    def expected(self) -> Expected:
        """What is in it."""
        return tuple(self._expected)

    def place(self) -> Place:
        """For `unpacked`, in any number of processes: of an accelerator's memory, one each."""
        if self._memory is not None:
            return self._memory.name
        from torch.multiprocessing.reductions import reduce_tensor

        torch.cuda.synchronize(self._data.device)
        *arguments, _ = reduce_tensor(self._data)[1]
        return [*arguments, False]  # no event to wait for: torch would never close the receiver's end of it

    def close(self) -> None:
        """Let go of it."""
        del self._data
        if self._memory is not None:
            self._memory.close()


def packed(weights: Iterable[tuple[str, Tensor]]) -> Iterator[Piece]:
    """All of them, in this machine's memory. A piece is closed when the next one is asked for."""
    piece: Piece | None = None
    try:
        for name, tensor in weights:
            if piece is not None and not piece.fits(tensor):
                yield piece
                piece.close()
                piece = None
            piece = piece or Piece(tensor, on_accelerator=False)
            piece.add(name, tensor)
        if piece is not None:
            yield piece
    finally:
        if piece is not None:
            piece.close()


def unpacked(place: Place, expected: Expected, device: torch.device) -> list[tuple[str, Tensor]]:
    """The weights of another process's piece; they keep its memory. `device` is the accelerator that both use, whose
    memory they are a copy of: that process can have its own back."""
    data, end, weights = _mapped(place, device), 0, []
    for name, shape, dtype_name in expected:
        dtype, shape = getattr(torch, dtype_name), tuple(shape)
        size = torch.Size(shape).numel() * dtype.itemsize
        weights.append((name, data[end : end + size].view(dtype).view(shape)))
        end = _aligned(end + size)
    return weights


def _mapped(place: Place, device: torch.device) -> Tensor:
    if not isinstance(place, str):
        from torch.multiprocessing.reductions import rebuild_cuda_tensor

        arguments = [*place[:DEVICE], device.index or 0, *place[DEVICE + 1 :]]
        theirs: Tensor = rebuild_cuda_tensor(*arguments)
        ours = theirs.clone()
        torch.cuda.synchronize(device)  # it is mapped until then
        return ours
    memory = SharedMemory(place)
    try:
        return _bytes(memory)
    finally:
        memory.close()


def _bytes(memory: SharedMemory) -> Tensor:
    # Not torch.frombuffer: it would not keep the memory mapped.
    return torch.from_numpy(np.frombuffer(memory.map, dtype=np.uint8))


def _aligned(end: int) -> int:
    return -(-end // ALIGNMENT) * ALIGNMENT
