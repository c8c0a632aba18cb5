"""A process's connection to Ray: to the cluster that it was told of, or to a Ray that it starts on its own machine."""

from __future__ import annotations

import atexit
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil
import ray

from rlanything.errors import RunError
from rlanything.launch.access import fresh_token, loopback_alone
from rlanything.processes.interrupts import raise_unheard
from rlanything.processes.orphans import adopt_orphans

POLL_S = 1.0
HEAD_S = 60.0  # for the head to answer: it may have been started a moment ago
END_S = 5.0  # for processes that are killed to be gone
# Ray would hide the accelerators of an actor that asks for none by its own count; slots share them out.
KEEP_DEVICES = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
# Ray would run its workers at nice 15, where anything else on a CPU machine starves them: here they do all the work.
NODE_ENV = {"RAY_worker_niceness": "0", "RAY_DEDUP_LOGS": "0", **KEEP_DEVICES}


class Session:
    """Connects to Ray at `address`, or starts one here where that is empty; all its processes work in this one's
    folder. Raises RunError where no head answers."""

    def __init__(self, address: str) -> None:
        if re.fullmatch(r".+:\d+", address):
            wait_for_head(address)
        os.environ |= NODE_ENV
        self._others: set[psutil.Process] | None = None  # of another Ray, where this process starts one
        if not address:
            if token := fresh_token(os.environ):
                os.environ["RAY_AUTH_TOKEN"] = token  # that it is asked for is Ray's default here
            adopt_orphans()  # they end below
            self._others = _ray_processes()
            atexit.register(self._end_own)
        with nullcontext() if address else loopback_alone():
            _init_ray(
                address=address or "local",
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"worker_process_setup_hook": _work_in(str(Path.cwd()))},
            )

    def close(self) -> None:
        """Leave the cluster. Waits for nothing of Ray's: a signal to the whole group ended its processes too."""
        ray.shutdown()
        self._end_own()

    def _end_own(self) -> None:
        """Kill what is left of it: where a signal to the whole group ended some of its processes while it started,
        others would wait for them."""
        atexit.unregister(self._end_own)
        if self._others is None:
            return
        deadline = time.monotonic() + END_S
        while (left := _ray_processes() - self._others) and time.monotonic() < deadline:  # one may just start another
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, POLL_S)


def _ray_processes() -> set[psutil.Process]:
    """Those below this one."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if line.startswith("ray::") or "/ray/" in line:
                found.add(process)
    return found


def _init_ray(**options: Any) -> None:
    """`ray.init`. Ray answers to SIGTERM by a SystemExit wherever this process stands, from the start of that on: what
    the program does comes in its place."""
    ours = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init(**options)
        finally:
            signal.signal(signal.SIGTERM, ours)  # asks Ray's handler once more, where a signal has just come
            if not isinstance(sys.exception(), SystemExit):  # else of Ray's handler: below
                raise_unheard()  # in the place of what Ray raises where a signal has ended its processes
    except SystemExit as end:
        if end.code != signal.SIGTERM:
            raise
        signal.signal(signal.SIGTERM, ours)
        signal.raise_signal(signal.SIGTERM)
        raise KeyboardInterrupt from end  # ours did not: Ray may leave its own handler of SIGINT behind


def wait_for_head(address: str, limit_s: float = HEAD_S) -> None:
    """Ray itself would try for many minutes, in silence. Raises RunError."""
    host, port = address.rsplit(":", 1)
    deadline = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=limit_s).close()
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise RunError(
                    f"no Ray head answers at RAY_ADDRESS={address} after {limit_s:g} s ({error}); is node 0 up, and "
                    "the port open?"
                ) from error
            time.sleep(POLL_S)
    asked = [sys.executable, "-m", "ray.scripts.scripts", "status", f"--address={address}"]
    while True:
        try:
            subprocess.run(asked, timeout=limit_s, check=True, capture_output=True, text=True)
            return
        except subprocess.TimeoutExpired:
            why = "it does not answer as one"
        except subprocess.CalledProcessError as error:  # a head says so for a moment while it starts
            why = (error.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        if time.monotonic() > deadline:
            raise RunError(
                f"what listens at RAY_ADDRESS={address} is no Ray head of this version ({why}): another program has "
                "the port, or the nodes differ in what is installed or in RAY_AUTH_TOKEN"
            )
        time.sleep(POLL_S)


def _work_in(folder: str) -> Callable[[], None]:
    def work_in() -> None:
        with suppress(OSError):  # `check_nodes` says which path a node does not see
            os.chdir(folder)

    return work_in
