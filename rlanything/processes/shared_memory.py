"""Shared memory without a name: the kernel frees it with the last process that maps it, however that process ends.

vLLM keeps the message queues between an engine and its tensor-parallel workers in named shared memory, about 100 MB
per engine. Python's resource tracker removes the names of a dead owner, but the tracker is a child of that owner, and
Ray kills the children of a dead process. Names and memory would then stay until the machine restarts.
"""

import contextlib
import mmap
import os


class SharedMemory:
    """The part of `multiprocessing.shared_memory.SharedMemory` that vLLM uses, on memfd_create(2).

    `name` is a path that the same user's processes on this machine can open while the creator holds the memory; `size`
    is in bytes. Raises FileNotFoundError if the creator has closed `name` or runs on another machine.
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
        """Unmap the memory in this process. It may be called twice."""
        if self.buf is None:
            return
        self.buf.release()
        self.buf = None
        os.close(self._fd)
        with contextlib.suppress(BufferError):  # a caller still holds a view; the memory is unmapped with that view
            self.map.close()

    def unlink(self) -> None:
        """Do nothing: there is no name to remove."""
