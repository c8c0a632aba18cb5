"""Memory and processes of desktops, read from /proc in one pass for all of them."""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Processes and memory of a desktop."""

    processes: int
    memory_mib: float
    """Anonymous and shared memory of its processes [MiB]; the folders in memory have limits of their own."""


def children() -> Mapping[int, Sequence[int]]:
    """Processes by their parent."""
    found: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    found[int(file.read().rpartition(b")")[2].split()[1])].append(int(name))
            except (OSError, IndexError):  # it ended
                continue
    return found


def usage(root: int, by_parent: Mapping[int, Sequence[int]]) -> Usage:
    """The usage of a process and all below it."""
    below, waiting = [root], [root]
    while waiting:
        found = by_parent.get(waiting.pop(), ())
        below += found
        waiting += found
    return Usage(processes=len(below), memory_mib=sum(map(_own_mib, below)))


def _own_mib(process: int) -> float:
    """Its share of anonymous and of shared memory; files that it maps can be dropped at any time."""
    try:
        with open(f"/proc/{process}/smaps_rollup", "rb") as file:
            held = [line.split() for line in file if line.startswith((b"Pss_Anon:", b"Pss_Shmem:"))]
    except OSError:  # it ended
        return 0.0
    return sum(int(words[1]) for words in held) / 1024
