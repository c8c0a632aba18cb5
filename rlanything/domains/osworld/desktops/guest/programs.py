"""Tells whether a desktop's programs work or wait for input. The module runs in our guests' server."""

import contextlib
import os
from pathlib import Path


def working() -> bool:
    """True if a thread of another process computes, or waits for a processor or a disk."""
    others = (name for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid())
    return any(state in "RD" for process in others for state in states(process))


def states(process: str) -> list[str]:
    """Return the states of a process's threads, proc_pid_stat(5), without those that have ended."""
    found = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with contextlib.suppress(OSError):
                told = Path(f"/proc/{process}/task/{thread}/stat").read_text(errors="replace")
                found.append(told.rpartition(")")[2].split()[0])
    return found
