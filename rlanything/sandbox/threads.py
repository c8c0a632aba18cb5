"""Threads in the place of processes: `multiprocessing` for programs that cannot start any. Standard library alone.

It builds on `multiprocessing.dummy`, the standard library's own replacement, and adds what that leaves out. Limits of
time count all threads of a process.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing.dummy
import multiprocessing.pool
import threading
from concurrent.futures import ThreadPoolExecutor, process
from multiprocessing import sharedctypes
from typing import Any

MAX_WORKER = 8  # of a pool: a program may have few threads
_Pool: Any = multiprocessing.pool.Pool


def use_threads_for_processes() -> None:
    """Let `multiprocessing` and ProcessPoolExecutor work with threads, in this process and its children."""
    for name in multiprocessing.dummy.__all__:
        setattr(multiprocessing, name, getattr(multiprocessing.dummy, name))
    for kind in (Process, Pool, ProcessPoolExecutor):
        kind.__module__ = "multiprocessing"
    multiprocessing.Process = Process  # type: ignore[misc, assignment]
    multiprocessing.Pool = multiprocessing.pool.Pool = Pool  # type: ignore[misc]
    multiprocessing.Manager = Manager  # type: ignore[assignment]
    multiprocessing.Value, multiprocessing.Array = Value, Array  # type: ignore[assignment]
    multiprocessing.get_context = lambda method=None: multiprocessing  # type: ignore[assignment]
    process.ProcessPoolExecutor = concurrent.futures.ProcessPoolExecutor = ProcessPoolExecutor  # type: ignore


class Process(multiprocessing.dummy.Process):
    """Replaces `multiprocessing.Process`."""

    def __init__(
        self,
        group: None = None,
        target: Any = None,
        name: str | None = None,
        args: Any = (),
        kwargs: Any = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        super().__init__(group, target, name, args, kwargs or {})
        if daemon is not None:
            self.daemon = daemon

    @property
    def pid(self) -> int | None:
        return self.ident

    def terminate(self) -> None:
        """A thread cannot be ended. The program waits for it, unless it is a daemon."""

    kill = close = terminate


class Pool(multiprocessing.pool.ThreadPool):
    """Replaces `multiprocessing.Pool`, which starts all its workers at once."""

    _handle_workers = _Pool._handle_workers  # looked up by the name Pool, and calls what ThreadPool has in another form

    def __init__(
        self,
        processes: int | None = None,
        initializer: Any = None,
        initargs: Any = (),
        maxtasksperchild: int | None = None,
        context: object = None,
    ) -> None:
        if isinstance(self, Pool):  # else it is a ThreadPool, which calls this one by the name Pool
            processes = MAX_WORKER if processes is None else min(processes, MAX_WORKER)
        _Pool.__init__(self, processes, initializer, initargs)


class ProcessPoolExecutor(ThreadPoolExecutor):
    """Replaces `concurrent.futures.ProcessPoolExecutor`, whose workers start when they are needed."""

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: object = None,
        initializer: Any = None,
        initargs: Any = (),
        *,
        max_tasks_per_child: int | None = None,
    ) -> None:
        super().__init__(max_workers, "", initializer, initargs)


def Value(typecode: Any, *args: Any, lock: Any = True) -> Any:
    """Replace `multiprocessing.Value`: the same object, with a lock for threads."""
    return sharedctypes.Value(typecode, *args, lock=_lock(lock))


def Array(typecode: Any, size_or_initializer: Any, *, lock: Any = True) -> Any:
    """Replace `multiprocessing.Array` likewise."""
    return sharedctypes.Array(typecode, size_or_initializer, lock=_lock(lock))


def _lock(lock: Any) -> Any:
    return threading.RLock() if lock is True or lock is None else lock


class Manager:
    """Replaces `multiprocessing.Manager`: threads share all objects."""

    dict, list, Namespace = dict, list, multiprocessing.dummy.Namespace
    Queue, JoinableQueue = multiprocessing.dummy.Queue, multiprocessing.dummy.JoinableQueue
    Lock, RLock, Event = threading.Lock, threading.RLock, threading.Event
    Condition, Semaphore, BoundedSemaphore = threading.Condition, threading.Semaphore, threading.BoundedSemaphore
    Barrier, Pool = threading.Barrier, Pool
    Value, Array = staticmethod(multiprocessing.dummy.Value), staticmethod(multiprocessing.dummy.Array)

    def __enter__(self) -> Manager:
        return self

    def __exit__(self, *error: object) -> None:
        """No process is there to end."""

    def start(self, *args: object) -> None:
        """No process serves the objects."""

    shutdown = start
