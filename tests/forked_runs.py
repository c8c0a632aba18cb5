"""Entry points in processes of their own without seconds of imports each: forked from one process that has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
        with pytest.raises(ProcessLookupError):  # nobody of its group is left
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                os.killpg(process, 0)
                time.sleep(0.1)
        return subprocess.CompletedProcess(argv, status, out.read_text(), err.read_text())

    def close(self) -> None:
        self.parent.communicate()
