"""The sandbox: runners, each isolated once, that execute untrusted programs side by side."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType

from rlanything.errors import ClearError
from rlanything.sandbox.kernel import SUPPORTED
from rlanything.sandbox.protocol import MIB, Execution, Limits, Verdict, receive, send
from rlanything.sandbox.rules import seccomp_rules

PER_CORE = 2  # runners: while the kernel makes and ends one program's namespaces, another computes
ERROR_BYTES = 4000  # of standard error that are told
CLOSE_S = 1.0  # for a runner to end by itself
START_S = 30.0  # for a runner to isolate itself
GRACE_S = 20.0  # beyond an execution's own limit, for the kernel to clear up after it
_MAIN = (
    "import sys; sys.path.insert(0, sys.argv[1]); from rlanything.sandbox.runner import serve; serve(int(sys.argv[2]))"
)

logger = logging.getLogger(__name__)


class SandboxUnavailable(ClearError, RuntimeError):
    """Programs cannot be isolated here: the message says why and what to do."""


class Sandbox:
    """Executes programs, at most `num_runner` at once (0: some a core). A context manager; `close` ends the runners.

    Raises SandboxUnavailable where this machine cannot isolate them, unless `allow_unisolated`: then limits alone hold
    them, and they can read and write what this user can.
    """

    def __init__(self, num_runner: int = 0, allow_unisolated: bool = False) -> None:
        num = num_runner or PER_CORE * len(os.sched_getaffinity(0))
        self._rules = seccomp_rules()
        if not self._rules:
            logger.warning("libseccomp is missing: programs can start processes, whose time is not counted")
        self.isolated = True
        self.restarts = 0
        self._closed = False
        # Runners end with the thread that started them, so these do, which last.
        self._threads = ThreadPoolExecutor(num, "sandbox")
        try:
            first = self._threads.submit(self._start).result()
        except SandboxUnavailable:
            if not allow_unisolated:
                self._threads.shutdown()
                raise
            self.isolated = False
            first = self._threads.submit(self._start).result()
        self._idle: queue.LifoQueue[_Runner | None] = queue.LifoQueue()
        for _ in range(num - 1):
            self._idle.put(None)  # started when it is needed
        self._idle.put(first)
        self._busy: set[_Runner] = set()

    async def run(self, source: bytes, stdin: bytes, limits: Limits) -> Execution:
        """Execute a Python program on an input. What it writes, and how it ends, is data: nothing is raised for it."""
        return await asyncio.wrap_future(self._threads.submit(self._run, source, stdin, limits))

    def _run(self, source: bytes, stdin: bytes, limits: Limits) -> Execution:
        runner = self._idle.get()
        try:
            runner = runner or self._start()
            self._busy.add(runner)
            if self._closed:  # asked after `add`: `close` hangs up on who is busy
                raise ConnectionError("the sandbox was closed")
            return runner.execute(source, stdin, limits)
        except (OSError, SandboxUnavailable) as error:  # TimeoutError is one
            if runner is not None:
                self._busy.discard(runner)
                runner.close()
            runner = None
            if self._closed:
                return Execution(Verdict.SANDBOX_ERROR, error="the sandbox was closed")
            self.restarts += 1
            logger.warning("a sandbox runner broke: %s", error)
            return Execution(Verdict.SANDBOX_ERROR, error=f"the runner broke: {error}")
        finally:
            if runner is not None:
                self._busy.discard(runner)
            self._idle.put(runner)

    def _start(self) -> _Runner:
        return _Runner(self.isolated, self._rules if self.isolated else b"")

    def close(self) -> None:
        """End all runners, and the programs under way."""
        if self._closed:
            return
        self._closed = True
        for busy in list(self._busy):
            busy.hang_up()
        self._threads.shutdown(cancel_futures=True)
        while not self._idle.empty():
            if (runner := self._idle.get()) is not None:
                runner.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Runner:
    """One runner's process, from outside."""

    def __init__(self, isolated: bool, rules: bytes) -> None:
        if isolated and not SUPPORTED:
            raise SandboxUnavailable(_unavailable("it wants Linux on x86-64 or ARM"))
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        package = str(Path(__file__).resolve().parents[2])
        # The interpreter itself, not a virtual environment's: programs see none of its packages.
        line = [os.path.realpath(sys.executable), "-s", "-P", "-c", _MAIN, package, str(theirs.fileno())]
        environment = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
        environment["MALLOC_ARENA_MAX"] = "1"  # else every thread reserves 64 MiB of a program's address space
        with theirs:
            self._process = subprocess.Popen(
                line,
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is the caller's
            )
        self._connection.settimeout(START_S)
        try:
            send(self._connection, {"isolated": isolated, "rules": rules.hex()})
            answer = receive(self._connection)
        except OSError as error:
            answer = {"error": str(error)}, []
        if answer is None or answer[0]["error"]:
            self.close()
            raise SandboxUnavailable(_unavailable(answer[0]["error"] if answer else "its process ended"))

    def execute(self, source: bytes, stdin: bytes, limits: Limits) -> Execution:
        """Raises OSError where the runner no longer answers."""
        with ExitStack() as files:
            given = [files.enter_context(_memory_file(data)) for data in (source, stdin, b"", b"")]
            self._connection.settimeout(limits.wall_s + GRACE_S)
            send(self._connection, vars(limits), given)
            answer = receive(self._connection)
            if answer is None:
                raise ConnectionError("its process ended")
            output, error = given[2:]
            header = answer[0]
            told = os.pread(error, ERROR_BYTES, max(0, os.fstat(error).st_size - ERROR_BYTES))
            detail = header.pop("detail", "") or told.decode("utf-8", "backslashreplace")
            written = os.pread(output, limits.output_mb * MIB, 0)
            return Execution(Verdict(header.pop("verdict")), written, detail, **header)

    def hang_up(self) -> None:
        """End the program under way: `execute` raises ConnectionError, in its thread."""
        with suppress(OSError):  # it was closed a moment ago
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the process and all that it started."""
        self._connection.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def _memory_file(data: bytes) -> Iterator[int]:
    """An open file in memory, of these bytes, at its beginning."""
    file = os.memfd_create("program")
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(file, left) :]
        os.lseek(file, 0, os.SEEK_SET)
        yield file
    finally:
        os.close(file)


def _unavailable(reason: str) -> str:
    return (
        f"programs cannot be isolated here ({reason}): allow user namespaces (in a container, its seccomp profile may "
        "forbid them; see sysctl user.max_user_namespaces and, on Ubuntu, "
        "kernel.apparmor_restrict_unprivileged_userns), or set sandbox.allow_unisolated=true where nothing on this "
        "machine could be harmed"
    )
