"""One command for every node of a job: `python -m rlanything.launch alfworld_rl.py config=... [key=value ...]`.

Node 0 starts Ray's head and the script; the others join Ray and wait. All end when the script ends, with its exit
status, which node 0 tells them over a connection of their own (port + 1): a connection that breaks means to them that
node 0 is gone, and to node 0 that a node is gone, whose share of the work nobody else has: the script is stopped.
Neither ssh nor shell start-up files are used. Over that connection node 0 also gives the token that Ray asks for, to
whoever knows the job's command and id. It listens at the address that the scheduler gave, Ray (which knows no other
way) on all of a node's interfaces, or on the loopback alone where that address is the loopback's.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlanything.cluster.session import NODE_ENV
from rlanything.errors import ClearError
from rlanything.launch.access import ASK_LOOPBACK, LOOPBACK, authentication, fresh_token
from rlanything.launch.addresses import address_of
from rlanything.launch.membership import JOB_NODES, LaunchError, Membership, job_token, membership
from rlanything.launch.status import JOIN_TIMEOUT_S, StatusConnection, StatusServer, check_port
from rlanything.processes.guard import run_guarded
from rlanything.processes.orphans import die_with_parent
from rlanything.processes.versions import check_versions, installed

CLOSE_S = 15.0  # for Ray to end by itself
STOP_S = 60.0  # for the script to end by itself once it was told to
POLL_S = 1.0
USAGE = "usage: scripts/launch.sh SCRIPT.py config=FILE.yaml [key=value ...], on every node of a job"
LOST = 1  # exit status of a node whose head or Ray process is gone


def start_ray(me: Membership, head: str, address: str, token: str, log: Path) -> subprocess.Popen[bytes]:
    """Ray on this node, as the head where this is node 0; `head` is that node's address, `address` this node's."""
    log.parent.mkdir(parents=True, exist_ok=True)
    where = ["--head", f"--port={me.port}", f"--ray-client-server-port={me.port + 2}", "--include-dashboard=false"]
    if me.rank:
        where = [f"--address={head}:{me.port}"]
    # A folder of its own: where two nodes start on one machine at the same time, Ray gives them the same sockets.
    folder = Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir())) / f"ray_node_{me.rank}"
    ray_cli = "rlanything.launch.access" if head == LOOPBACK else "ray.scripts.scripts"
    with open(log, "ab") as out:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", ray_cli, "start", *where, f"--node-ip-address={address}"),
                *(f"--temp-dir={folder}", "--block", "--disable-usage-stats"),
            ],
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=_end_with_parent,
            env=os.environ | NODE_ENV | authentication(token),
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """End Ray and all that it started."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(CLOSE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run_head(me: Membership, command: list[str], log: Path) -> int:
    """Ray's head, the script, and its exit status for all. Raises LaunchError where it cannot start, or another node or
    this one's Ray left, VersionError where this node's packages do not fit."""
    if me.num_node == 1:
        return _run_script(command, dict(os.environ), lambda: False)
    try:
        address = address_of(me.host)
    except OSError as error:
        raise LaunchError(
            f"node 0's host {me.host!r} tells node 0 no address by which others reach it ({error}): give one in "
            "MLP_WORKER_0_HOST or MASTER_ADDR on every node"
        ) from error
    token = fresh_token(os.environ)
    server = StatusServer(address, me.port + 1, me.num_node, job_token(os.environ, command), token)
    status, lost = LOST, ""
    ray: subprocess.Popen[bytes] | None = None

    def must_stop() -> bool:
        nonlocal lost
        if server.lost is None and ray is not None and ray.poll() is not None:
            lost = f"node 0's Ray, at {address}:{me.port}, could not start or is gone; see {log}"
        return server.stopped or server.lost is not None or bool(lost)

    try:
        check_versions(installed(), f"node 0 ({socket.gethostname()})")
        check_port(address, me.port)
        check_port(address, me.port + 2)  # Ray's for clients, which nobody asks, but Ray ends where it is taken
        ray = start_ray(me, address, address, token, log)
        told = {"RAY_ADDRESS": f"{address}:{me.port}", JOB_NODES: str(me.num_node)} | authentication(token)
        told |= ASK_LOOPBACK if address == LOOPBACK else {}
        status = _run_script(command, os.environ | NODE_ENV | told, must_stop)
        if server.lost is not None:
            lost = f"node {server.lost} is gone: {server.why or 'its machine or its job; see its own output'}"
        if lost and not server.stopped and status != 0:
            status = LOST
            raise LaunchError(lost)
    finally:
        server.tell(status)
        if ray is not None:
            stop(ray)
    return status


def run_worker(me: Membership, command: list[str], log: Path) -> int:
    """Join Ray and wait for node 0's exit status; where this node is told to stop, node 0 stops the job."""
    connection = StatusConnection(me, job_token(os.environ, command), JOIN_TIMEOUT_S)
    where, stopped = f"node {me.rank} ({socket.gethostname()})", False

    def ask_to_stop(*_: Any) -> None:
        nonlocal stopped
        stopped = True
        connection.say_stop()

    signal.signal(signal.SIGINT, ask_to_stop)
    signal.signal(signal.SIGTERM, ask_to_stop)
    ray: subprocess.Popen[bytes] | None = None
    try:
        check_versions(installed(), where)
        ray = start_ray(me, connection.head, connection.address, connection.token, log)
        while ray.poll() is None or stopped:  # where all were told to stop, Ray may end before node 0 tells
            try:
                status = connection.told(POLL_S)
            except OSError as error:
                raise LaunchError(f"{where}: node 0 is gone ({error})") from error
            if status is not None:
                return status
        raise LaunchError(f"{where}: its Ray could not start or is gone; see {log}")
    except ClearError as error:
        connection.say_why(str(error))
        raise
    finally:
        connection.close()
        if ray is not None:
            stop(ray)


def _run_script(command: list[str], env: dict[str, str], must_stop: Callable[[], bool]) -> int:
    """Run the script to its end, or stop it. A signal reaches it as SIGTERM, of which it may leave out one that comes
    twice (`cli.REPEAT_S`); what it ends with tells which signal was the first."""
    script = subprocess.Popen(
        [sys.executable, *command],
        env=env,
        preexec_fn=_end_with_parent,
        process_group=0,  # a terminal's Ctrl-C comes here, and reaches the script once
    )
    deadline, first = math.inf, 0

    def end(number: int, *_: Any) -> None:
        nonlocal deadline, first
        deadline, first = min(deadline, time.monotonic() + STOP_S), first or number
        script.terminate()

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    while script.poll() is None:
        if not first and must_stop():
            end(signal.SIGTERM)
        if time.monotonic() > deadline:
            os.killpg(script.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            script.wait(POLL_S)
    status = script.returncode if script.returncode >= 0 else 128 - script.returncode
    return 128 + first if status == 128 + signal.SIGTERM and first else status


def _end_with_parent() -> None:
    """In a child: be told to end where this process is killed, so that nothing of a job is left behind."""
    die_with_parent(signal.SIGTERM)


def _first_host(nodes: str) -> str:
    try:
        shown = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise LaunchError(
            f"scontrol does not tell the first host of SLURM_JOB_NODELIST={nodes} ({error}): set MASTER_ADDR to that "
            "host on every node"
        ) from error
    return shown.stdout.split()[0]


def main() -> None:
    """Take this node's part."""
    command = sys.argv[1:]
    if command and command[0] in ("-h", "--help"):
        print(f"{USAGE}\n\n{__doc__}")
        return
    if not command or not command[0].endswith(".py"):
        raise LaunchError(USAGE)
    me = membership(os.environ, _first_host)
    log = Path("logs") / f"ray_node_{me.rank}.log"
    sys.exit(run_head(me, command, log) if me.rank == 0 else run_worker(me, command, log))


if __name__ == "__main__":
    run_guarded(main, "starts the job anew", versions=False)
