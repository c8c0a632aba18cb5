"""Hostile programs, and the check that the sandbox holds one."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import psutil

from rlanything.sandbox.pool import Sandbox
from rlanything.sandbox.protocol import Execution, Limits, Verdict

LIMITS = Limits(time_s=1.0, wall_s=4.0, memory_mb=256, output_mb=16, num_thread=4, files_mb=4)
OK, RUNTIME, TIME = Verdict.OK, Verdict.RUNTIME_ERROR, Verdict.TIME_LIMIT
MEMORY, OUTPUT = Verdict.MEMORY_LIMIT, Verdict.OUTPUT_LIMIT
SECRET = "the input of another program"
LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"


@dataclass(frozen=True)
class Attack:
    """A program, its possible verdicts, and its expected output (None: any)."""

    source: str
    verdict: Verdict | tuple[Verdict, ...]
    output: str | None = None


def refused(call: str, setup: str = "import os") -> Attack:
    """A program that prints "refused" if a call raises OSError. Any other output is a way out of the sandbox."""
    return Attack(
        f"{setup}\ntry:\n    print('done', {call})\nexcept OSError as e:\n    print('refused')", OK, "refused\n"
    )


def denied(call: str) -> Attack:
    """A program whose system call, made through the C library, returns -1."""
    return Attack(f"{LIBC}print({call})", OK, "-1\n")


def execute(sandbox: Sandbox, source: str | bytes, stdin: bytes = b"", limits: Limits = LIMITS) -> Execution:
    given = source.encode() if isinstance(source, str) else source
    return asyncio.run(sandbox.run(given, stdin, limits))


def descendants() -> set[int]:
    """Return the ids of all descendants of this process."""
    return {p.pid for p in psutil.Process().children(recursive=True)}


def check(sandbox: Sandbox, attack: Attack) -> None:
    """Assert that an attack gets its verdict, leaves no process, and does not disturb the next program."""
    for _ in range(2):  # starts both runners
        execute(sandbox, "pass", SECRET.encode())
    before, restarts = descendants(), sandbox.restarts
    started = time.monotonic()
    result = execute(sandbox, attack.source)
    assert time.monotonic() - started < LIMITS.wall_s + 5, "the host stays responsive"
    expected = attack.verdict if isinstance(attack.verdict, tuple) else (attack.verdict,)
    assert result.verdict in expected, result
    assert attack.output is None or result.output.decode() == attack.output, result
    assert descendants() <= before, "a process was left behind"
    after = execute(sandbox, "import math\nprint(int(math.sqrt(int(input()))))", b"49\n")
    assert (after.verdict, after.output) == (OK, b"7\n"), "the next program runs as if nothing had happened"
    assert sandbox.restarts == restarts
