"""The messages between the pool and a runner. Standard library alone, because the runner imports it."""

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MAX_PACKET, MAX_FILES = 1 << 16, 4
MIB = 1 << 20


class Verdict(StrEnum):
    """How an execution ended. SANDBOX_ERROR is a fault of the infrastructure and never becomes a reward."""

    OK = "ok"  # exit status 0; the sandbox does not know whether the output is right
    WRONG_ANSWER = "wrong_answer"  # set by the caller, which compares outputs
    RUNTIME_ERROR = "runtime_error"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    SANDBOX_ERROR = "sandbox_error"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one execution."""

    time_s: float = 4.0
    """Processor time [s]."""
    wall_s: float = 20.0
    """Elapsed time [s] after which the program is killed. Much larger than `time_s`, because runners share cores."""
    memory_mb: int = 512
    """Address space [MiB]."""
    output_mb: int = 16
    """Largest size of standard output, of standard error, and of any file [MiB]."""
    num_thread: int = 32
    """Threads at once. The seccomp filter allows a single process."""
    files_mb: int = 16
    """All files in /tmp together [MiB]."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """The result of one execution."""

    verdict: Verdict
    output: bytes = b""
    """Standard output, up to `Limits.output_mb`."""
    error: str = ""
    """The end of standard error, or why the sandbox failed."""
    exit_code: int = 0
    """The exit status, or the negative number of the signal that ended the program."""
    seconds: float = 0.0
    """Processor time [s]."""
    wall_s: float = 0.0
    """Elapsed time [s]."""
    memory_mb: float = 0.0
    """Largest resident memory [MiB]."""


def send(connection: socket.socket, header: dict[str, Any], files: Sequence[int] = ()) -> None:
    """Send one packet: a JSON header, and open files that the other side receives too (SCM_RIGHTS).

    Sources, inputs and outputs travel as files only. The runner never holds them in its memory, so no later program
    can find them there.
    """
    socket.send_fds(connection, [json.dumps(header).encode()], list(files))


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Receive the next packet, or None if the other side has closed the connection."""
    data, files, _, _ = socket.recv_fds(connection, MAX_PACKET, MAX_FILES)
    return (json.loads(data), files) if data else None
