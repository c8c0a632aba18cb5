"""Ends the process where an engine hangs: a call that never returns can neither be cancelled nor raise."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from pathlib import Path


class Watchdog:
    """Guards a block of code, `with watchdog: step()`, or what has a `beat`: from the first one to `rest`.

    Where the block, or the time between two beats, takes longer than `limit_s`, which the configuration's `key` says,
    the stacks of all threads go to `log_path`, one message to stderr, and the process exits with code 1. A run loses
    the step in flight, as by any crash, and goes on from its checkpoint.
    """

    def __init__(self, limit_s: float, log_path: Path, key: str = "engine.*.step_timeout_s") -> None:
        self.limit_s, self.log_path, self.key = limit_s, log_path, key
        self._since: float | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        self.beat()

    def __exit__(self, *_: object) -> None:
        self.rest()

    def beat(self) -> None:
        """What is guarded goes on; it must do so again within the limit."""
        self._since = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()

    def rest(self) -> None:
        """Nothing is to be guarded for now."""
        self._since = None

    def _watch(self) -> None:
        pause_s = min(1.0, self.limit_s / 4)
        looked = time.monotonic()
        while True:
            time.sleep(pause_s)
            since, before, looked = self._since, looked, time.monotonic()
            if since is None:
                continue
            if looked - before > self.limit_s / 2:  # this whole process was stopped: its engine was not at fault
                self._since = looked
            elif looked - since > self.limit_s:
                self._end()

    def _end(self) -> None:
        try:
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.log_path, "a") as log:
                faulthandler.dump_traceback(log, all_threads=True)
            print(
                "error: the engine hangs: its start, a forward pass or a transfer of weights takes longer than "
                f"{self.key}={self.limit_s:g}; where it hangs is in {self.log_path}; the same command goes on from the "
                "last checkpoint",
                file=sys.stderr,
                flush=True,
            )
        finally:  # also where the disk is full
            os._exit(1)
