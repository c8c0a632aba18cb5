"""A SIGINT or SIGTERM whose KeyboardInterrupt Python swallows still ends the run."""

import signal
import subprocess
import sys

import pytest

LOST = """
import os, signal, sys
from rlanything.processes.guard import run_guarded
from rlanything.runs.progress import Progress

class Swallows:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[1]))
        for _ in range(1000):
            pass

def main():
    progress = Progress()
    with progress.phase("one"):
        Swallows()
        print("went on", flush=True)
    with progress.phase("two"):
        print("and on", flush=True)

run_guarded(main, versions=False)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_a_finaliser_swallows_ends_the_run_at_the_next_phase(number, code):
    done = subprocess.run([sys.executable, "-c", LOST, str(int(number))], capture_output=True, text=True, check=False)
    assert done.returncode == code, done
    assert done.stdout == "went on\n"
    assert done.stderr == "stopped; the same command goes on from the last checkpoint\n"
