"""What the pool and a runner say to each other. Standard library alone: see `runner`."""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_HEAD = struct.Struct("<II")  # lengths of the header and of the bytes after it


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
    """Of one execution. Above `time_s` of processor time it fails, above `wall_s` it is killed."""

    time_s: float = 4.0
    wall_s: float = 10.0
    memory_mb: int = 512  # of each process [MiB]
    output_mb: int = 16  # written to standard output, to standard error or to a file [MiB]
    num_process: int = 8  # and threads, at once
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


def send(connection: socket.socket, header: dict[str, Any], *parts: bytes) -> None:
    """One message: a header, and byte strings whose lengths it carries."""
    head = json.dumps({**header, "parts": [len(part) for part in parts]}).encode()
    body = b"".join(parts)
    connection.sendall(_HEAD.pack(len(head), len(body)) + head)
    connection.sendall(body)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[bytes]] | None:
    """The next message; None where the other side has gone."""
    head = _exactly(connection, _HEAD.size)
    if head is None:
        return None
    num_head, num_body = _HEAD.unpack(head)
    header_bytes, body = _exactly(connection, num_head), _exactly(connection, num_body)
    if header_bytes is None or body is None:
        return None
    header: dict[str, Any] = json.loads(header_bytes)
    parts, start = [], 0
    for length in header.pop("parts"):
        parts.append(body[start : start + length])
        start += length
    return header, parts


def _exactly(connection: socket.socket, num: int) -> bytes | None:
    received = bytearray()
    while len(received) < num:
        chunk = connection.recv(min(num - len(received), 1 << 20))
        if not chunk:
            return None
        received += chunk
    return bytes(received)
