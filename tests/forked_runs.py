"""Entry points in processes of their own without seconds of imports each: forked from one process that has them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

# Never forked from pytest itself: threads and OpenMP's pools of a process that computed do not live on in its forks.
PARENT = """
import json, os, signal, sys
import rlanything.train
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.alarm(180)  # a run that hangs is a failed test
        for stream, path in enumerate([os.devnull, job["out"], job["err"]]):
            os.dup2(os.open(path, os.O_RDWR), stream)
        sys.argv = job["argv"]
        exec(job["before"] + "\\nexec(open(sys.argv[0]).read())\\n", {"__name__": "__main__", "sys": sys})
        sys.exit()
    print(json.dumps([child, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]), flush=True)
"""


def members(group: int, ended: float) -> list[psutil.Process]:
    """The processes of a group that began before it ended: its number may be another group's since."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.create_time() <= ended:
                found.append(process)
    return found


def members_after(group: int, limit_s: float = 10) -> list[psutil.Process]:
    """The processes that are left of a group whose leader has ended just now, `limit_s` later at most."""
    ended, deadline = time.time(), time.monotonic() + limit_s
    while (left := members(group, ended)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


class ForkedRuns:
    """`run` starts an entry point as a shell would, with code executed before it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parent = subprocess.Popen(
            [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, argv: list[str], before: str = "") -> subprocess.CompletedProcess[str]:
        """To its end; raises where a process of its group is left."""
        out, err = self.folder / "out", self.folder / "err"
        out.write_text("")
        err.write_text("")
        job = {"argv": argv, "before": before, "out": str(out), "err": str(err)}
        print(json.dumps(job), file=self.parent.stdin, flush=True)
        process, status = json.loads(self.parent.stdout.readline())
        assert not members_after(process), "a process of its group is left"
        return subprocess.CompletedProcess(argv, status, out.read_text(), err.read_text())

    def close(self) -> None:
        self.parent.communicate()
