"""What the pool and a runner say to each other. Standard library alone: see `runner`."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MAX_PACKET, MAX_FILES = 1 << 16, 4
MIB = 1 << 20


class Verdict(StrEnum):
    """What became of a program on one input. `SANDBOX_ERROR` is the infrastructure's: never a reward."""

    OK = "ok"  # it ended by itself with status 0; whether its output is right, others know
    WRONG_ANSWER = "wrong_answer"
    RUNTIME_ERROR = "runtime_error"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    SANDBOX_ERROR = "sandbox_error"


@dataclass(frozen=True)
class Limits:
    """Of one execution. Above `time_s` of processor time it fails, above `wall_s` it is killed: much more, for runners
    share the processor."""

    time_s: float = 4.0
    wall_s: float = 20.0
    memory_mb: int = 512  # [MiB]
    output_mb: int = 16  # written to standard output, to standard error or to a file [MiB]
    num_thread: int = 32  # at once; with seccomp there is only one process
    files_mb: int = 16  # of all files together [MiB]


@dataclass(frozen=True)
class Execution:
    """What a program did. `error` is the end of its standard error, `seconds` processor time."""

    verdict: Verdict
    output: bytes = b""
    error: str = ""
    exit_code: int = 0
    seconds: float = 0.0
    wall_s: float = 0.0
    memory_mb: float = 0.0


def send(connection: socket.socket, header: dict[str, Any], files: Sequence[int] = ()) -> None:
    """One packet: a header, and open files that the other side gets too. A program's texts travel as files alone, so
    the runner never holds what a later program could find in its memory."""
    socket.send_fds(connection, [json.dumps(header).encode()], list(files))


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next packet; None where the other side has gone."""
    data, files, _, _ = socket.recv_fds(connection, MAX_PACKET, MAX_FILES)
    return (json.loads(data), files) if data else None
