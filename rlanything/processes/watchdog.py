"""Ends the process if an engine hangs: a call that never returns can neither be cancelled nor made to raise."""

import faulthandler
import os
import sys
import threading
import time
from pathlib import Path


class Watchdog:
    """Guards a block of code, `with watchdog: step()`, or a loop that calls `beat` in each round and `rest` at the end.

    If the block, or the time between two beats, takes longer than `limit_s` seconds, the watchdog writes the stacks of
    all threads to `log_path` and one message to stderr, and exits the process with status 1.
    `key` is the configuration key that sets `limit_s`.
    """

    def __init__(self, limit_s: float, log_path: Path, key: str = "engine.*.step_timeout_s") -> None:
        self.limit_s, self.log_path, self.key = limit_s, log_path, key
        self._last_beat: float | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        self.beat()

    def __exit__(self, *_: object) -> None:
        self.rest()

    def beat(self) -> None:
        """Start the limit anew."""
        self._last_beat = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()

    def rest(self) -> None:
        """Stop guarding until the next beat."""
        self._last_beat = None

    def _watch(self) -> None:
        pause_s = min(1.0, self.limit_s / 4)
        checked = time.monotonic()
        while True:
            time.sleep(pause_s)
            last_beat, before, checked = self._last_beat, checked, time.monotonic()
            if last_beat is None:
                continue
            if checked - before > self.limit_s / 2:  # this thread was late too: the whole process was stopped (SIGSTOP)
                self._last_beat = checked
            elif checked - last_beat > self.limit_s:
                self._end()

    def _end(self) -> None:
        try:
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.log_path, "a") as log:
                faulthandler.dump_traceback(log, all_threads=True)
            print(
                "error: the engine hangs: its start, a forward pass or a weight transfer takes longer than "
                f"{self.key}={self.limit_s:g} s; the stacks of its threads are in {self.log_path}; the same command "
                "goes on from the last checkpoint",
                file=sys.stderr,
                flush=True,
            )
        finally:  # also if the disk is full
            os._exit(1)
