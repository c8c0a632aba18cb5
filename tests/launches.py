"""What the scripts of launched jobs do in tests, and which processes are left of a job."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

LOOPBACK = {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
JOIN = """
import os, signal, sys, time, ray
ray.init(os.environ["RAY_ADDRESS"], logging_level="ERROR")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
while sum(n["Alive"] for n in ray.nodes()) < 3:
    time.sleep(0.2)
print("three nodes", flush=True)
"""


def wait_for_three(job: subprocess.Popen) -> None:
    """Until a job of JOIN says that all are there; on a busy machine Ray has something to say before."""
    said = []
    while "three nodes\n" not in said:
        said.append(job.stdout.readline())
        assert said[-1], said


def assert_nobody_works_in(folder: Path) -> None:
    """Wait for the last process whose working folder it is."""
    deadline = time.monotonic() + 30
    while alive := [p for p in psutil.process_iter(["cwd", "cmdline"]) if p.info["cwd"] == str(folder)]:
        assert time.monotonic() < deadline, [p.info["cmdline"] for p in alive]
        time.sleep(0.5)


def title(process: psutil.Process) -> str:
    """What a process calls itself; nothing where it has ended."""
    try:
        return (process.cmdline() or [""])[0]
    except psutil.Error:
        return ""


def listening(processes: Iterable[psutil.Process] = ()) -> set[str]:
    """The addresses at which these processes, or this one, and all below them listen."""
    found = set()
    for above in processes or [psutil.Process()]:
        for process in [above, *above.children(recursive=True)]:
            with suppress(psutil.Error):
                found |= {c.laddr.ip for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    return found
