"""The sandbox: a pool of runner processes, each isolated once, that execute untrusted programs in parallel."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from rlanything.errors import TaskError
from rlanything.sandbox.kernel import SUPPORTED
from rlanything.sandbox.packages import PackagesUnavailable, install, modules
from rlanything.sandbox.protocol import MIB, Execution, Limits, Verdict, receive, send
from rlanything.sandbox.seccomp import compile_filter

PER_CORE = 2  # runners per core: while the kernel sets up or clears one program's namespaces, another computes
ERROR_BYTES = 4000  # bytes of standard error that an Execution keeps
CLOSE_S = 1.0  # time that a runner has to exit by itself before it is killed [s]
START_S = 30.0  # time that a runner has to isolate itself [s]
GRACE_S = 20.0  # time beyond `Limits.wall_s` in which the kernel clears up after a program [s]
_MAIN = (
    "import sys; sys.path.insert(0, sys.argv[1]); from rlanything.sandbox.runner import serve; serve(int(sys.argv[2]))"
)

logger = logging.getLogger(__name__)


class SandboxUnavailable(TaskError):
    """This machine cannot isolate programs. The message says why and what to do."""


class Sandbox(AbstractContextManager["Sandbox"]):
    """Executes programs, at most `num_runner` at once (0: PER_CORE for each core). Leaving the context closes it.

    Raises SandboxUnavailable if this machine cannot isolate programs. With `allow_unisolated` they then run with
    resource limits alone, and can read and write everything that the current user can. Programs may import `packages`;
    raises PackagesUnavailable if those cannot be installed or imported.
    """

    def __init__(self, num_runner: int = 0, allow_unisolated: bool = False, packages: Sequence[str] = ()) -> None:
        num = num_runner or PER_CORE * len(os.sched_getaffinity(0))
        self._packages = (str(folder := install(packages)), modules(folder, packages)) if packages else ("", [])
        self._filter = compile_filter()
        if not self._filter:
            logger.warning(
                "libseccomp or pyseccomp is missing, so programs can start processes whose processor time is not "
                "counted; install libseccomp2 and pyseccomp"
            )
        self.isolated = True
        self.restarts = 0
        self._closed = False
        # PDEATHSIG fires when the spawning *thread* exits, so runners are started from these long-lived threads.
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
            self._idle.put(None)  # a runner that is started when it is first needed
        self._idle.put(first)
        self._busy: set[_Runner] = set()

    async def run(self, source: bytes, stdin: bytes, limits: Limits) -> Execution:
        """Execute a Python program on an input. Failures are verdicts of the Execution: nothing is raised."""
        return await asyncio.wrap_future(self._threads.submit(self._run, source, stdin, limits))

    def _run(self, source: bytes, stdin: bytes, limits: Limits) -> Execution:
        runner = self._idle.get()
        try:
            runner = runner or self._start()
            self._busy.add(runner)
            if self._closed:  # checked after `add`, because `close` hangs up on the busy runners
                raise ConnectionError("the sandbox was closed")
            return runner.execute(source, stdin, limits)
        except (OSError, SandboxUnavailable) as error:  # OSError includes a timeout of the connection
            if runner is not None:
                self._busy.discard(runner)
                runner.close()
            runner = None
            if self._closed:
                return Execution(verdict=Verdict.SANDBOX_ERROR, error="the sandbox was closed")
            self.restarts += 1
            logger.warning("a sandbox runner failed and is replaced: %s", error)
            return Execution(verdict=Verdict.SANDBOX_ERROR, error=f"the sandbox runner failed: {error}")
        finally:
            if runner is not None:
                self._busy.discard(runner)
            self._idle.put(runner)

    def _start(self) -> _Runner:
        return _Runner(self.isolated, self._filter if self.isolated else b"", *self._packages)

    def close(self) -> None:
        """End all runners and the programs that they execute."""
        if self._closed:
            return
        self._closed = True
        for runner in list(self._busy):
            runner.hang_up()
        self._threads.shutdown(cancel_futures=True)
        while not self._idle.empty():
            if (idle := self._idle.get()) is not None:
                idle.close()

    def __exit__(self, *error: object) -> None:
        self.close()


class _Runner:
    """The pool's handle on one runner process."""

    def __init__(self, isolated: bool, seccomp_filter: bytes, packages: str, modules: list[str]) -> None:
        if isolated and not SUPPORTED:
            raise _unavailable("isolation needs Linux on x86-64 or ARM64")
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        package = str(Path(__file__).resolve().parents[2])
        # The resolved path is the base interpreter, so programs see no package of a virtual environment.
        line = [os.path.realpath(sys.executable), "-s", "-P", "-c", _MAIN, package, str(theirs.fileno())]
        environment = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        environment["MALLOC_ARENA_MAX"] = "1"  # by default glibc reserves 64 MiB of address space for every thread
        with theirs:
            self._process = subprocess.Popen(
                line,
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # the terminal's Ctrl-C reaches the caller only
            )
        self._connection.settimeout(START_S)
        try:
            settings = {"isolated": isolated, "filter": seccomp_filter.hex(), "packages": packages, "modules": modules}
            send(self._connection, settings)
            answer = receive(self._connection)
        except OSError as error:
            answer = {"error": str(error)}, []
        if answer is None or answer[0]["error"]:
            self.close()
            raise _unavailable(answer[0]["error"] if answer else "the runner process ended")
        if "packages_error" in answer[0]:
            self.close()
            raise PackagesUnavailable(answer[0]["packages_error"])

    def execute(self, source: bytes, stdin: bytes, limits: Limits) -> Execution:
        """Execute one program. Raises OSError if the runner does not answer."""
        with ExitStack() as stack:
            files = [stack.enter_context(_memory_file(data)).fileno() for data in (source, stdin, b"", b"")]
            self._connection.settimeout(limits.wall_s + GRACE_S)
            send(self._connection, vars(limits), files)
            answer = receive(self._connection)
            if answer is None:
                raise ConnectionError("its process ended")
            result, (_, _, stdout, stderr) = answer[0], files
            error_tail = os.pread(stderr, ERROR_BYTES, max(0, os.fstat(stderr).st_size - ERROR_BYTES))
            error = result.pop("detail", "") or error_tail.decode("utf-8", "backslashreplace")
            output = os.pread(stdout, limits.output_mb * MIB, 0)
            return Execution(verdict=Verdict(result.pop("verdict")), output=output, error=error, **result)

    def hang_up(self) -> None:
        """End the current program: `execute`, which waits in its own thread, raises ConnectionError."""
        with suppress(OSError):  # `close` may have closed the connection a moment ago
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the runner process and everything that it started."""
        self._connection.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _memory_file(data: bytes) -> BinaryIO:
    """Open a file in memory (memfd) that holds `data`, at its beginning."""
    file = open(os.memfd_create("program"), "w+b")
    file.write(data)
    file.seek(0)  # this flushes too
    return file


def _unavailable(reason: str) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"programs cannot be isolated here ({reason}). Allow user namespaces: check the seccomp profile if this is a "
        "container, sysctl user.max_user_namespaces, and on Ubuntu kernel.apparmor_restrict_unprivileged_userns. Or "
        "set sandbox.allow_unisolated=true if the programs can harm nothing on this machine"
    )
