"""What every integration test is held to."""

import glob
import os
import time

import psutil
import pytest
from launches import title

SHM = "/dev/shm/"
# What processes of a run call themselves. Ray keeps agents of its own and idle workers; these belong to their run.
OF_RUNS = (*(f"ray::{name}" for name in ("Board", "EngineReplica", "EnvHost", "LearnerRank")), "VLLM::")


def shared_memory() -> set[str]:
    return set(os.listdir(SHM))


def unmapped(names: set[str]) -> set[str]:
    """Those of `names` that no process maps any more, so that nobody will take them away.

    Told by inode, fifth of the columns of /proc/pid/maps (proc(5)): a semaphore is mapped under a name of before.
    """
    mapped = set()
    for path in glob.glob("/proc/[0-9]*/maps"):
        try:
            with open(path) as maps:
                mapped |= {int(line.split()[4]) for line in maps if SHM in line}
        except OSError:  # the process has ended
            continue
    left = set()
    for name in names:
        try:
            if os.stat(SHM + name).st_ino not in mapped:
                left.add(name)
        except FileNotFoundError:
            continue
    return left


@pytest.fixture(autouse=True)
def no_shared_memory_is_left():
    """Nothing new in /dev/shm, whose contents outlive all processes: a semaphore of a start may go a little later.

    What a living process maps is its own: the suite's other worker runs engines meanwhile.
    """
    before = shared_memory()
    yield
    deadline = time.monotonic() + 20
    while (left := unmapped(shared_memory() - before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def of_runs() -> set[psutil.Process]:
    """Processes of runs below this one, or below nobody: their parent has died. Others are of the suite's other
    worker."""
    orphans = [process for process in psutil.process_iter(["ppid"]) if process.info["ppid"] == 1]
    return {p for p in [*psutil.Process().children(recursive=True), *orphans] if title(p).startswith(OF_RUNS)}


@pytest.fixture(autouse=True)
def no_process_of_a_run_is_left():
    """But for those of fixtures, which were there before."""
    before = of_runs()
    yield
    deadline = time.monotonic() + 30
    while left := of_runs() - before:
        assert time.monotonic() < deadline, [title(process) for process in left]
        time.sleep(0.2)
