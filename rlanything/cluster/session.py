"""A process's connection to Ray: to a cluster at a given address, or to a Ray that it starts on its own machine."""

import atexit
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray

from rlanything.errors import RunError
from rlanything.launch.network import LOOPBACK, NODE_ENV, allow_loopback, fresh_token
from rlanything.processes.interrupts import raise_missed_interrupt
from rlanything.processes.orphans import adopt_orphans

SHARED_MEMORY = "/dev/shm"
POLL_S = 1.0
HEAD_S = 60.0  # for a head to answer, which may have started a moment ago
END_S = 5.0  # for killed processes to be gone
logger = logging.getLogger(__name__)
RAY_NAMES = ("ray::", "VLLM::", "raylet", "gcs_server")  # of processes (comm in proc_pid_stat(5))


class Session:
    """Connects to Ray at `address`, or starts Ray on this machine if `address` is "".

    All processes of the session work in this one's folder, so that relative paths mean the same to all.
    Raises RunError if no Ray head answers at `address`.
    """

    def __init__(self, address: str) -> None:
        if re.fullmatch(r".+:\d+", address):
            wait_for_head(address)
        self._foreign: set[psutil.Process] | None = None  # Ray processes below this one that are not this session's
        if not address:
            if token := fresh_token(os.environ):
                os.environ["RAY_AUTH_TOKEN"] = token  # ray.init itself sets RAY_AUTH_MODE for a Ray that it starts
            os.environ |= NODE_ENV
            allow_loopback()
            adopt_orphans()  # so that `_end_own` finds processes of Ray whose own parent has ended
            self._foreign = _ray_processes()
            atexit.register(self._end_own)
        shared = shutil.disk_usage(SHARED_MEMORY).free
        with _own_sigterm_handler():
            ray.init(
                address or "local",
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"worker_process_setup_hook": _work_in(str(Path.cwd()))},
                _node_ip_address=None if address else LOOPBACK,
            )

        if not address and shared < (store := ray.cluster_resources()["object_store_memory"]):
            logger.warning(
                "%s has %.1f GiB free, and Ray's object store wants %.1f: Ray keeps it on disk, so samples and weights "
                "travel slowly; enlarge it (docker run --shm-size=...)",
                SHARED_MEMORY,
                shared / 2**30,
                store / 2**30,
            )

    def close(self) -> None:
        """Leave the cluster, and end a Ray that this process started."""
        ray.shutdown()
        self._end_own()

    def _end_own(self) -> None:
        """Kill what is left of a Ray that this process started.

        If a signal to the whole group ends some of Ray's processes while they start, the others would stay.
        """
        atexit.unregister(self._end_own)
        if self._foreign is None:
            return
        deadline = time.monotonic() + END_S
        while (left := _ray_processes() - self._foreign) and time.monotonic() < deadline:  # one may just start another
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, POLL_S)
        adopt_orphans(False)


def _ray_processes() -> set[psutil.Process]:
    """Ray's processes, and those that vLLM starts in them, among this one's descendants.

    Some have ended, and wait for their parent to take notice: this process, if their own one has ended before them.
    """
    return {process for process in psutil.Process().children(recursive=True) if _is_rays(process)}


def _is_rays(process: psutil.Process) -> bool:
    with suppress(psutil.Error):  # a process that has ended has a name, but no command line
        return process.name().startswith(RAY_NAMES) or "/ray/" in " ".join(process.cmdline())
    return False


@contextmanager
def _own_sigterm_handler() -> Iterator[None]:
    """Keep this program's SIGTERM handler while Ray starts: Ray's own would raise SystemExit wherever it is called."""
    handler: Any = signal.getsignal(signal.SIGTERM)
    ray_utils: Any = ray._private.utils
    set_handler, ray_utils.set_sigterm_handler = ray_utils.set_sigterm_handler, lambda handler: None
    try:
        yield
    finally:
        ray_utils.set_sigterm_handler = set_handler
        signal.signal(signal.SIGTERM, handler)  # Ray's native code has replaced Python's handler
        raise_missed_interrupt()  # takes the place of an error that Ray raises because the signal ended its processes


def wait_for_head(address: str, limit_s: float = HEAD_S) -> None:
    """Wait until a Ray head answers at `address`. Raises RunError if none does within `limit_s`.

    Ray itself would try for many minutes without a message.
    """
    deadline = time.monotonic() + limit_s
    while fault := _head_fault(address, limit_s):
        if time.monotonic() > deadline:
            raise RunError(fault)
        time.sleep(POLL_S)


def _head_fault(address: str, limit_s: float) -> str:
    """Why no usable Ray head answers at `address` now; "" if one does."""
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=limit_s).close()
    except OSError as error:
        return (
            f"no Ray head answers at RAY_ADDRESS={address} after {limit_s:g} s ({error}); is node 0 up, and the port "
            "open?"
        )
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", f"--address={address}"]
    try:
        subprocess.run(command, timeout=limit_s, check=True, capture_output=True, text=True)
        return ""
    except subprocess.TimeoutExpired:
        reason = "it does not answer `ray status`"
    except subprocess.CalledProcessError as error:  # a head that starts fails for a moment, too
        reason = (error.stderr.strip().splitlines() or ["it gave no reason"])[-1]
    return (
        f"RAY_ADDRESS={address}: what listens there is no Ray head of this version ({reason}); another program has the "
        "port, or the nodes differ in their packages or in RAY_AUTH_TOKEN"
    )


def _work_in(folder: str) -> Callable[[], None]:
    def work_in() -> None:
        with suppress(OSError):  # a node that lacks the folder is named by `check_nodes`
            os.chdir(folder)

    return work_in
