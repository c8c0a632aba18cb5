"""The sandbox: runners, each isolated once, that execute untrusted programs side by side."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from rlanything.errors import ClearError
from rlanything.sandbox.kernel import SUPPORTED
from rlanything.sandbox.protocol import Execution, Limits, Verdict, receive, send
from rlanything.sandbox.rules import seccomp_rules

PER_CORE = 4  # runners: an execution waits for the kernel about as long as it computes
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
        num = num_runner or PER_CORE * (os.cpu_count() or 1)
        self._rules = seccomp_rules()
        self.isolated = True
        try:
            first = _Runner(True, self._rules)
        except SandboxUnavailable:
            if not allow_unisolated:
                raise
            self.isolated = False
            first = _Runner(False, b"")
        self.restarts = 0
        self._idle: queue.SimpleQueue[_Runner | None] = queue.SimpleQueue()
        self._idle.put(first)
        for _ in range(num - 1):
            self._idle.put(None)  # started when it is needed
        self._threads = ThreadPoolExecutor(num, "sandbox")
        self._closed = False

    async def run(self, source: bytes, stdin: bytes, limits: Limits) -> Execution:
        """Execute a Python program on an input. What it writes, and how it ends, is data: nothing is raised for it."""
        return await asyncio.wrap_future(self._threads.submit(self._run, source, stdin, limits))

    def _run(self, source: bytes, stdin: bytes, limits: Limits) -> Execution:
        runner = self._idle.get()
        try:
            runner = runner or self._start()
            return runner.execute(source, stdin, limits)
        except (OSError, SandboxUnavailable) as error:  # TimeoutError is one
            if runner is not None:
                runner.close()
            runner = None
            self.restarts += 1
            logger.warning("a sandbox runner broke: %s", error)
            return Execution(Verdict.SANDBOX_ERROR, error=f"the runner broke: {error}")
        finally:
            self._idle.put(runner)

    def _start(self) -> _Runner:
        return _Runner(self.isolated, self._rules if self.isolated else b"")

    def close(self) -> None:
        """Wait for what is under way, then end all runners."""
        if self._closed:
            return
        self._closed = True
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
        self._connection, theirs = socket.socketpair()
        package = str(Path(__file__).resolve().parents[2])
        # The interpreter itself, not a virtual environment's: of its packages programs see nothing.
        line = [os.path.realpath(sys.executable), "-s", "-P", "-c", _MAIN, package, str(theirs.fileno())]
        environment = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
        with theirs:
            self._process = subprocess.Popen(
                line, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL
            )
        self._connection.settimeout(START_S)
        try:
            send(self._connection, {"isolated": isolated}, rules)
            answer = receive(self._connection)
        except OSError as error:
            answer = {"error": str(error)}, []
        if answer is None or answer[0]["error"]:
            self.close()
            raise SandboxUnavailable(_unavailable(answer[0]["error"] if answer else "its process ended"))

    def execute(self, source: bytes, stdin: bytes, limits: Limits) -> Execution:
        """Raises OSError where the runner no longer answers."""
        self._connection.settimeout(limits.wall_s + GRACE_S)
        send(self._connection, vars(limits), source, stdin)
        answer = receive(self._connection)
        if answer is None:
            raise ConnectionError("its process ended")
        header, (output, error) = answer
        detail = header.pop("detail", "")
        verdict = Verdict(header.pop("verdict"))
        return Execution(verdict, output, detail or error.decode("utf-8", "backslashreplace"), **header)

    def close(self) -> None:
        """End the process and all that it started."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


def _unavailable(reason: str) -> str:
    return (
        f"programs cannot be isolated here ({reason}): allow user namespaces (in a container, its seccomp profile may "
        "forbid them; on Ubuntu, sysctl kernel.apparmor_restrict_unprivileged_userns=0), or set "
        "sandbox.allow_unisolated=true where nothing on this machine could be harmed"
    )
