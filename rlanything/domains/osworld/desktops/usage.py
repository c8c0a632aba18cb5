"""Memory and processes of desktops, read from /proc in one pass for all of them."""

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

LOOK_S = 2.0  # longest exact look at a desktop's memory


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Processes and memory of a desktop."""

    processes: int
    threads: int
    memory_mib: float
    """Anonymous and shared memory of its processes, in swap space too [MiB], with files in memory that they hold open
    and have not mapped (memfd_create). The folders in memory have limits of their own."""


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


def usage(root: int, by_parent: Mapping[int, Sequence[int]], limit_processes: int, limit_mib: float) -> Usage:
    """The usage of a process and all below it.

    If they are more than `limit_processes`, their number alone is right, and threads and memory are 0: to read these
    takes long, while an agent that forks without end makes more.

    Pages that several processes share are counted once only if the memory would be above the limit otherwise: the exact
    look goes through all mappings of a process, of which an agent can make many. If it takes longer than LOOK_S, the
    sum counts.
    """
    below, waiting = [root], [root]
    while waiting:
        found = by_parent.get(waiting.pop(), ())
        below += found
        waiting += found
    if len(below) > limit_processes:
        return Usage(processes=len(below), threads=0, memory_mib=0.0)
    threads, anonymous, shared = (sum(counts) for counts in zip(*map(_counted, below), strict=True))
    held = sum({file: size for process in below for file, size in _memory_files(process)}.values())
    # A mapped file in memory is shared memory already, so the larger of the two counts.
    memory, until = anonymous + max(shared, held), time.monotonic() + LOOK_S
    if memory / 1024 > limit_mib:
        exact = [_exact_kib(process) for process in below if time.monotonic() < until]
        if len(exact) == len(below):
            anonymous, shared = (sum(kib) for kib in zip(*exact, strict=True))
            memory = anonymous + max(shared, held)
    return Usage(processes=len(below), threads=threads, memory_mib=memory / 1024)


def _counted(process: int) -> tuple[int, int, int]:
    """Its threads, its anonymous memory and its shared memory [KiB], as the kernel counts them (proc_pid_status(5))."""
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            told = {words[0]: words[1] for line in file if len(words := line.split()) > 1}
    except OSError:  # it ended
        return 0, 0, 0
    threads, anonymous, shared, swapped = (
        int(told.get(key, 0)) for key in (b"Threads:", b"RssAnon:", b"RssShmem:", b"VmSwap:")
    )
    return threads, anonymous + swapped, shared


def _exact_kib(process: int) -> tuple[int, int]:
    """Its share of anonymous and of shared memory [KiB]; other files that it maps can be dropped at any time."""
    try:
        with open(f"/proc/{process}/smaps_rollup", "rb") as file:
            kib = {words[0]: int(words[1]) for line in file if b"Pss" in (words := line.split())[0]}
    except OSError:  # it ended
        return 0, 0
    return kib.get(b"Pss_Anon:", 0) + kib.get(b"SwapPss:", 0), kib.get(b"Pss_Shmem:", 0)


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
