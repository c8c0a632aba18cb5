"""One command for every node of a job: `python -m rlanything.cluster.launch alfworld_rl.py config=... [key=value ...]`.

Node 0 starts Ray's head and the script; the others join Ray and wait. All end when the script ends, with its exit
status, which node 0 tells them over a connection of their own (port + 1): a connection that breaks means to them that
node 0 is gone, and to node 0 that a node is gone, whose share of the work nobody else has: the script is stopped.
Neither ssh nor shell start-up files are used. It listens at the address that the scheduler gave.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rlanything.cli import run_guarded
from rlanything.cluster.membership import LaunchError, Membership, membership
from rlanything.cluster.runtime import NODE_ENV

JOIN_TIMEOUT_S = 600.0  # for node 0 to come up
CLOSE_S = 15.0  # for Ray to end by itself
RANK_BYTES = 4
POLL_S = 1.0
PR_SET_PDEATHSIG = 1  # of prctl(2)
LIBC = ctypes.CDLL(None)
LOST = 1  # exit status of a node whose head or Ray process is gone


class StatusServer:
    """Node 0 tells the others the script's exit status, when there is one. `lost`: the node that left before that."""

    def __init__(self, host: str, port: int, num_node: int) -> None:
        self.num_node = num_node
        try:
            self._socket = socket.create_server((host, port))
        except OSError as error:
            raise LaunchError(
                f"cannot listen at {host}:{port} ({error.strerror}): another run holds the port, or {host} is not this "
                "node's address; choose another port (MLP_WORKER_0_PORT or MASTER_PORT)"
            ) from error
        self._nodes: list[socket.socket] = []
        self.lost: int | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                node = self._socket.accept()[0]
                self._nodes.append(node)
                threading.Thread(target=self._watch, args=(node,), daemon=True).start()

    def _watch(self, node: socket.socket) -> None:
        """A node says its rank, and then nothing more: what comes next is its end. Who says no rank is no node."""
        with suppress(OSError):  # closed by `tell`
            rank = int.from_bytes(node.recv(RANK_BYTES))
            if not 0 < rank < self.num_node:
                return
            with suppress(ConnectionError):
                node.recv(1)
            if self.lost is None:
                self.lost = rank

    def tell(self, status: int) -> None:
        """Send the exit status and end."""
        self._socket.close()
        for node in self._nodes:
            with suppress(OSError):
                node.sendall(bytes([status & 0xFF]))
                node.close()


def wait_for_head(me: Membership, timeout_s: float = JOIN_TIMEOUT_S) -> socket.socket:
    """A connection to node 0, over which its exit status will come. Raises LaunchError where none answers."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            connection = socket.create_connection((me.host, me.port + 1), timeout=5)
            connection.sendall(me.rank.to_bytes(RANK_BYTES))
            return connection
        except OSError as error:
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"node 0 does not answer at {me.host}:{me.port + 1} after {timeout_s:g} s ({error}); is its job "
                    "running, and the port open?"
                ) from error
            time.sleep(1)


def start_ray(me: Membership, address: str, log: Path) -> subprocess.Popen[bytes]:
    """Ray on this node, as the head where this is node 0; `address` is the one by which the nodes reach each other."""
    log.parent.mkdir(parents=True, exist_ok=True)
    where = (
        ["--head", f"--node-ip-address={address}", f"--port={me.port}", "--include-dashboard=false"]
        if me.rank == 0
        else [f"--address={me.host}:{me.port}", f"--node-ip-address={address}"]
    )
    ray = Path(sys.executable).with_name("ray")
    # A folder of its own: where two nodes start on one machine at the same time, Ray gives them the same sockets.
    folder = Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir())) / f"ray_node_{me.rank}"
    with open(log, "ab") as out:
        return subprocess.Popen(
            [str(ray), "start", *where, f"--temp-dir={folder}", "--block", "--disable-usage-stats"],
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=_end_with_parent,
            env=node_env(),
        )


def node_env() -> dict[str, str]:
    """Ray authenticates by a token that all nodes must hold: RAY_AUTH_TOKEN of the job's environment, where it is set.
    Without one it is told not to, for the tokens that it would make on every node differ."""
    shared = any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"))
    return os.environ | NODE_ENV | ({} if shared else {"RAY_AUTH_MODE": "disabled"})


def stop(process: subprocess.Popen[bytes]) -> None:
    """End Ray and all that it started."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(CLOSE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run_head(me: Membership, command: list[str], log: Path) -> int:
    """Ray's head, the script, and its exit status for all. Raises LaunchError where another node left."""
    if me.num_node == 1:
        return _run_script(command, dict(os.environ), lambda: None)
    server = StatusServer(me.host, me.port + 1, me.num_node)
    status = LOST
    ray = start_ray(me, me.host, log)
    try:
        status = _run_script(command, node_env() | {"RAY_ADDRESS": f"{me.host}:{me.port}"}, lambda: server.lost)
    finally:
        lost = server.lost
        server.tell(status if lost is None else LOST)
        stop(ray)
    if lost is not None:
        raise LaunchError(f"node {lost} is gone: its machine, its job or its Ray; what it said is in its own output")
    return status


def run_worker(me: Membership, log: Path) -> int:
    """Join Ray and wait for node 0's exit status."""
    connection = wait_for_head(me)
    ray = start_ray(me, connection.getsockname()[0], log)
    try:
        told = _told_or_dead(connection, ray)
    finally:
        stop(ray)
    if told is None:
        raise LaunchError(f"node {me.rank}: node 0 or this node's Ray is gone; see {log}")
    return told


def _told_or_dead(connection: socket.socket, ray: subprocess.Popen[bytes]) -> int | None:
    connection.settimeout(POLL_S)
    while ray.poll() is None:
        with suppress(TimeoutError):
            said = connection.recv(1)
            return said[0] if said else None
    return None


def _run_script(command: list[str], env: dict[str, str], lost: Callable[[], int | None]) -> int:
    """Run the script to its end, or stop it where a node is lost; SIGTERM is passed on, Ctrl-C reaches it by itself."""
    script = subprocess.Popen([sys.executable, *command], env=env, preexec_fn=_end_with_parent)
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: script.terminate())
    stopped = False
    while script.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            script.wait(POLL_S)
        if lost() is not None and not stopped:
            stopped = True
            script.terminate()
    return script.returncode if script.returncode >= 0 else 128 - script.returncode


def _end_with_parent() -> None:
    """In a child: be told to end where this process is killed, so that nothing of a job is left behind."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _first_host(nodes: str) -> str:
    shown = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
    return shown.stdout.split()[0]


def main() -> None:
    """Take this node's part."""
    command = sys.argv[1:]
    if not command or not command[0].endswith(".py"):
        raise LaunchError("usage: python -m rlanything.cluster.launch SCRIPT.py config=FILE.yaml [key=value ...]")
    me = membership(os.environ, _first_host)
    log = Path("logs") / f"ray_node_{me.rank}.log"
    sys.exit(run_head(me, command, log) if me.rank == 0 else run_worker(me, log))


if __name__ == "__main__":
    run_guarded(main, "starts the job anew")
