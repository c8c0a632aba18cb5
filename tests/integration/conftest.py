"""What every integration test is held to."""

import glob
import os
import time

import pytest

SHM = "/dev/shm/"


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
