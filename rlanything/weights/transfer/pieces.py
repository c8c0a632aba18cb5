"""Weights packed into memory that other processes can map: anonymous shared memory of a machine, or an accelerator's
memory by CUDA IPC. A piece's memory exists as long as its maker or a process that mapped it needs it.

Source: pytorch.org/docs, "torch.multiprocessing", sharing CUDA tensors. The maker's allocator keeps shared memory until
the last process that mapped it lets go. If such a process is killed, the memory stays until the maker ends.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlanything.processes.shared_memory import SharedMemory
from rlanything.weights.transfer import Expected

PIECE_BYTES = 1 << 28  # large enough for few round trips, small enough to leave room for a second piece
ALIGNMENT = 64  # bytes, at least what any dtype needs

Handle = str | list[Any]  # a path that processes of this machine can open, or arguments of torch's rebuild_cuda_tensor
DEVICE = 6  # index of the device's number, in the maker's numbering, in the arguments of rebuild_cuda_tensor


class Piece:
    """Memory with room for at least the tensor `first`; `expected` lists its content. `close` it when others have
    mapped it."""

    def __init__(self, first: Tensor, on_accelerator: bool) -> None:
        size = max(PIECE_BYTES, first.nbytes)
        self._memory: SharedMemory | None = None
        if on_accelerator:
            self._data = torch.empty(size, dtype=torch.uint8, device=first.device)
        else:
            self._memory = SharedMemory(create=True, size=size)
            self._data = _bytes(self._memory)
        self.expected: Expected = ()
        self._end = 0

    def fits(self, tensor: Tensor) -> bool:
        return self._end + tensor.nbytes <= len(self._data)

    def add(self, name: str, tensor: Tensor) -> None:
        """Copy a weight into the piece."""
        data = tensor.detach().contiguous().view(-1).view(torch.uint8)
        self._data[self._end : self._end + len(data)].copy_(data)
        self.expected += ((name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")),)
        self._end = _aligned(self._end + len(data))

    def handle(self) -> Handle:
        """The handle by which another process maps the piece. On an accelerator, each process needs its own handle."""
        if self._memory is not None:
            return self._memory.name
        from torch.multiprocessing.reductions import reduce_tensor

        torch.cuda.synchronize(self._data.device)
        *arguments, _ = reduce_tensor(self._data)[1]
        return [*arguments, False]  # no event to wait for, because torch would leave the receiver's event open

    def close(self) -> None:
        """Unmap the memory in this process."""
        del self._data
        if self._memory is not None:
            self._memory.close()


def packed(weights: Iterable[tuple[str, Tensor]]) -> Iterator[Piece]:
    """Pieces of this machine's memory that hold all weights. A piece is closed when the next one is asked for."""
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


def unpacked(handle: Handle, expected: Expected, device: torch.device) -> list[tuple[str, Tensor]]:
    """(name, tensor) of each weight in another process's piece.

    Tensors in a machine's memory keep the piece mapped. Those on an accelerator (`device`) are copies, so that the
    other process can free its memory.
    """
    data, end, weights = _mapped(handle, device), 0, []
    for name, shape, dtype_name in expected:
        dtype, shape = getattr(torch, dtype_name), tuple(shape)
        size = torch.Size(shape).numel() * dtype.itemsize
        weights.append((name, data[end : end + size].view(dtype).view(shape)))
        end = _aligned(end + size)
    return weights


def _mapped(handle: Handle, device: torch.device) -> Tensor:
    if not isinstance(handle, str):
        from torch.multiprocessing.reductions import rebuild_cuda_tensor

        arguments = [*handle]
        arguments[DEVICE] = device.index or 0
        theirs: Tensor = rebuild_cuda_tensor(*arguments)
        ours = theirs.clone()
        torch.cuda.synchronize(device)  # the copy must end before the memory is unmapped
        return ours
    memory = SharedMemory(handle)
    try:
        return _bytes(memory)
    finally:
        memory.close()


def _bytes(memory: SharedMemory) -> Tensor:
    # torch.frombuffer would not keep the memory mapped.
    return torch.from_numpy(np.frombuffer(memory.map, dtype=np.uint8))


def _aligned(end: int) -> int:
    return -(-end // ALIGNMENT) * ALIGNMENT
