"""Shared memory without a name: the kernel frees it with the last process that maps it, however that one ends.

vLLM's message queues between an engine and its tensor-parallel workers lie in named shared memory, some 100 MB an
engine. Python's resource tracker removes the names after their owner's death, but it is a child of the owner, and Ray
kills a dead process's children: the names, and the memory, would stay until the machine restarts.
"""

from __future__ import annotations

import contextlib
import mmap
import os


class SharedMemory:
    """What vLLM uses of `multiprocessing.shared_memory.SharedMemory`: `name` is a path that the user's processes on
    this machine can open while the creator holds it.

    Raises FileNotFoundError where `name` is gone or was made on another machine.
    """

    def __init__(self, name: str | None = None, create: bool = False, size: int = 0) -> None:
        self._fd = os.memfd_create("rlanything") if create else os.open(name or "", os.O_RDWR | os.O_CLOEXEC)
        if create:
            os.ftruncate(self._fd, size)
        self.name = name or f"/proc/{os.getpid()}/fd/{self._fd}"
        self.map = mmap.mmap(self._fd, 0)
        self.size = len(self.map)
        self.buf: memoryview | None = memoryview(self.map)

    def close(self) -> None:
        """Give this process's mapping back; a second time is nothing."""
        if self.buf is None:
            return
        self.buf.release()
        self.buf = None
        os.close(self._fd)
        with contextlib.suppress(BufferError):  # a view of it is still held: unmapped with that view
            self.map.close()

    def unlink(self) -> None:
        """Nothing: there is no name to remove."""
