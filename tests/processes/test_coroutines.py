"""Coroutines that are run from code that is none."""

import subprocess
import sys

import pytest

from rlanything.processes.coroutines import run_coroutine

# A process of its own with Python's own handler, because test runners take SIGINT, shells ignore it in the background,
# and then asyncio does not ask who handles it.
COUNTED = """
import asyncio, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from rlanything.processes.coroutines import run_coroutine

class Episodes:
    written = 0

    def __repr__(self):
        self.written += 1
        return "episodes"

async def episodes():
    return found

found = Episodes()
with asyncio.Runner() as runner:
    assert run_coroutine(episodes(), runner) is found and run_coroutine(episodes(), runner) is found
assert run_coroutine(episodes()) is found
print(found.written)
asyncio.run(episodes())
print(found.written > 0)
"""


def test_asyncio_makes_no_text_of_what_a_step_returned():
    done = subprocess.run([sys.executable, "-c", COUNTED], capture_output=True, text=True, check=True)
    ours, by_asyncio = done.stdout.split()
    assert ours == "0"
    assert by_asyncio == "True"  # if not, Python has mended it, and `run_coroutine` can go


def test_an_error_of_the_coroutine_is_raised():
    async def fail() -> None:
        raise ValueError("no episode")

    with pytest.raises(ValueError, match="no episode"):
        run_coroutine(fail())
