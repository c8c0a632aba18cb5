"""Memory and processes of desktops, read from /proc in one pass for all of them."""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Processes and memory of a desktop."""

    processes: int
    memory_mib: float
    """Anonymous and shared memory of its processes [MiB], with files in memory that they hold open and have not mapped
    (memfd_create). The folders in memory have limits of their own."""


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
    anonymous, shared = (sum(kib) for kib in zip(*map(_own_kib, below), strict=True))
    held = {file: size for process in below for file, size in _memory_files(process)}
    # A mapped file in memory is shared memory already, so the larger of the two counts.
    return Usage(processes=len(below), memory_mib=(anonymous + max(shared, sum(held.values()))) / 1024)


def _own_kib(process: int) -> tuple[int, int]:
    """Its share of anonymous and of shared memory [KiB]; other files that it maps can be dropped at any time."""
    try:
        with open(f"/proc/{process}/smaps_rollup", "rb") as file:
            kib = {words[0]: int(words[1]) for line in file if (words := line.split())[0].startswith(b"Pss_")}
    except OSError:  # it ended
        return 0, 0
    return kib.get(b"Pss_Anon:", 0), kib.get(b"Pss_Shmem:", 0)


def _memory_files(process: int) -> Iterator[tuple[tuple[int, int], float]]:
    """Yield the files of memfd_create(2) that it holds open: (device and inode, size [KiB])."""
    try:
        names = os.listdir(f"/proc/{process}/fd")
    except OSError:  # it ended
        return
    for name in names:
        path = f"/proc/{process}/fd/{name}"
        try:
            if os.readlink(path).startswith("/memfd:"):
                found = os.stat(path)
                yield (found.st_dev, found.st_ino), found.st_blocks / 2
        except OSError:  # it was closed; the others count
            continue
