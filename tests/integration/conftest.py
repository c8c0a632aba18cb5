"""What every integration test is held to."""

import os
import time

import pytest


@pytest.fixture(autouse=True)
def no_shared_memory_is_left():
    """Nothing new in /dev/shm, whose contents outlive all processes: a semaphore of a start may go a little later."""
    before = set(os.listdir("/dev/shm"))
    yield
    deadline = time.monotonic() + 20
    while (left := set(os.listdir("/dev/shm")) - before) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
