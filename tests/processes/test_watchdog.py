"""An engine that hangs ends its process; an engine whose process was stopped for a while does not count as hanging."""

import signal
import subprocess
import sys
import time

GUARDED = """
import sys, time
from pathlib import Path
from rlanything.processes.watchdog import Watchdog
with Watchdog(2.0, Path(sys.argv[1])):
    print("guarded", flush=True)
    for _ in range(int(sys.argv[2])):
        time.sleep(0.1)
print("done")
"""


def guarded(log, tenths: int) -> subprocess.Popen:
    """A process that guards a block of so many tenths of a second."""
    process = subprocess.Popen(
        [sys.executable, "-c", GUARDED, str(log), str(tenths)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "guarded\n"
    return process


def test_a_block_that_takes_too_long_ends_its_process_and_writes_the_stacks(tmp_path):
    process = guarded(tmp_path / "log", 600)
    assert process.wait(60) == 1 and process.stdout.read() == ""
    assert "most recent call first" in (tmp_path / "log").read_text()


def test_a_process_that_was_stopped_goes_on(tmp_path):
    process = guarded(tmp_path / "log", 15)
    process.send_signal(signal.SIGSTOP)
    time.sleep(4)
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == 0 and process.stdout.read() == "done\n"
