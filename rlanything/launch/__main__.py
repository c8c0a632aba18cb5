"""Runs one command on all nodes of a job: `python -m rlanything.launch train config=... [key=value ...]`.

Submit the same line to every node. Node 0 starts Ray's head and the script (`rlanything train`, `rlanything eval` or a
Python file); the other nodes join Ray and wait. When the script ends, all nodes end with its exit status. Neither ssh
nor shell start-up files are used.

Every node connects to node 0 (port + 1), which sends Ray's token to nodes that know the job's command and id, and later
the exit status. A node that loses this connection ends. If node 0 loses one, it stops the script, because nobody else
has the lost node's share of the work. Node 0 listens for these connections at the address that the scheduler gave. Ray
can only listen on all interfaces of a node, or on the loopback if that is the given address.
"""

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
from functools import partial
from pathlib import Path
from typing import Any

from rlanything.errors import ClearError
from rlanything.launch.membership import JOB_NODES, LaunchError, Membership, job_token, membership
from rlanything.launch.network import ASK_LOOPBACK, LOOPBACK, NODE_ENV, address_of, authentication, fresh_token
from rlanything.launch.status import JOIN_TIMEOUT_S, StatusConnection, StatusServer, listen
from rlanything.processes.guard import run_guarded
from rlanything.processes.orphans import die_with_parent
from rlanything.processes.versions import check_versions, installed

CLOSE_S = 15.0  # for Ray to end after SIGTERM
STOP_S = 60.0  # for the script to end after SIGTERM
POLL_S = 1.0
USAGE = "usage: scripts/launch.sh train|eval|SCRIPT.py config=FILE.yaml [key=value ...], on every node of a job"
LOST = 1  # exit status of a node if node 0, another node or its own Ray is gone
end_with_launcher = partial(die_with_parent, signal.SIGTERM)  # runs in a child, so that a killed launcher leaves none


def start_ray(me: Membership, head: str, address: str, token: str, log: Path) -> subprocess.Popen[bytes]:
    """Start Ray on this node, on node 0 as the head. `head` is node 0's address, `address` this node's."""
    log.parent.mkdir(parents=True, exist_ok=True)
    role = ["--head", f"--port={me.port}", f"--ray-client-server-port={me.port + 2}", "--include-dashboard=false"]
    if me.rank:
        role = [f"--address={head}:{me.port}"]
    # Two nodes that start on one machine at the same time would get the same sockets from Ray in one folder.
    folder = Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir())) / f"ray_node_{me.rank}"
    ray_cli = "rlanything.launch.network" if head == LOOPBACK else "ray.scripts.scripts"
    with open(log, "ab") as out:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", ray_cli, "start", *role, f"--node-ip-address={address}"),
                *(f"--temp-dir={folder}", "--block", "--disable-usage-stats"),
            ],
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=end_with_launcher,
            env=os.environ | NODE_ENV | authentication(token),
        )


def end_ray(process: subprocess.Popen[bytes]) -> None:
    """End this node's Ray and all processes that it started."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(CLOSE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run_head(me: Membership, command: list[str], log: Path) -> int:
    """Start Ray's head, run the script, send its exit status to all nodes and return it.

    Raises LaunchError if Ray cannot start or ends, or if another node leaves; VersionError if packages do not fit.
    """
    if me.num_node == 1:
        return run_script(command, dict(os.environ), lambda: False)
    try:
        address = address_of(me.host)
    except OSError as error:
        raise LaunchError(
            f"node 0 has no address by which others reach it under its name {me.host!r} ({error}): set "
            "MLP_WORKER_0_HOST or MASTER_ADDR to its address on every node"
        ) from error
    token = fresh_token(os.environ)
    server = StatusServer(address, me.port + 1, me.num_node, job_token(os.environ, command), token)
    status, fault = LOST, ""
    ray: subprocess.Popen[bytes] | None = None

    def must_stop() -> bool:
        nonlocal fault
        if server.lost is None and ray is not None and ray.poll() is not None:
            fault = f"node 0's Ray, at {address}:{me.port}, could not start or is gone; see {log}"
        return server.stopped or server.lost is not None or bool(fault)

    try:
        check_versions(installed(), f"node 0 ({socket.gethostname()})")
        for port in (me.port, me.port + 2):  # Ray needs both, and says only in its log that one is taken
            listen(address, port).close()
        ray = start_ray(me, address, address, token, log)
        env = os.environ | authentication(token) | (ASK_LOOPBACK if address == LOOPBACK else {})
        env |= {"RAY_ADDRESS": f"{address}:{me.port}", JOB_NODES: str(me.num_node)}
        status = run_script(command, env, must_stop)
        if server.lost is not None:
            fault = f"node {server.lost} is gone: {server.reason or 'its machine or its job; see its own output'}"
        if fault and not server.stopped and status != 0:
            status = LOST
            raise LaunchError(fault)
    finally:
        server.end(status)
        if ray is not None:
            end_ray(ray)
    return status


def run_worker(me: Membership, command: list[str], log: Path) -> int:
    """Join Ray, wait for node 0's exit status and return it. If this node is told to stop, node 0 stops the job.

    Raises LaunchError if node 0 or this node's Ray is gone, VersionError if packages do not fit.
    """
    connection = StatusConnection(me, job_token(os.environ, command), JOIN_TIMEOUT_S)
    node = f"node {me.rank} ({socket.gethostname()})"
    signal.signal(signal.SIGINT, connection.report_stop)
    signal.signal(signal.SIGTERM, connection.report_stop)
    ray: subprocess.Popen[bytes] | None = None
    try:
        check_versions(installed(), node)
        ray = start_ray(me, connection.head, connection.address, connection.token, log)
        while ray.poll() is None or connection.stopped:  # a stopped job's Ray may end before node 0 sends the status
            try:
                status = connection.exit_status(POLL_S)
            except OSError as error:
                raise LaunchError(f"{node}: node 0 is gone ({error})") from error
            if status is not None:
                return status
        raise LaunchError(f"{node}: its Ray could not start or is gone; see {log}")
    except ClearError as error:
        connection.report_fault(str(error))
        raise
    finally:
        connection.close()
        if ray is not None:
            end_ray(ray)


def run_script(command: list[str], env: dict[str, str], must_stop: Callable[[], bool]) -> int:
    """Run the script until it ends or `must_stop`. Returns its exit status (128 + number for a signal).

    SIGINT and SIGTERM are forwarded as SIGTERM; the script may ignore a copy (`guard.REPEAT_S`). If the script ends by
    that SIGTERM, the status names the signal that came first.
    """
    script = subprocess.Popen(
        [sys.executable, *command],
        env=env,
        preexec_fn=end_with_launcher,
        process_group=0,  # a terminal sends Ctrl-C to the launcher's group only, so the script gets one signal
    )
    deadline, first = math.inf, 0

    def terminate(number: int, *_: Any) -> None:
        nonlocal deadline, first
        deadline, first = min(deadline, time.monotonic() + STOP_S), first or number
        script.terminate()

    signal.signal(signal.SIGINT, terminate)
    signal.signal(signal.SIGTERM, terminate)
    while script.poll() is None:
        if not first and must_stop():
            terminate(signal.SIGTERM)
        if time.monotonic() > deadline:
            os.killpg(script.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            script.wait(POLL_S)
    status = script.returncode if script.returncode >= 0 else 128 - script.returncode
    return 128 + first if status == 128 + signal.SIGTERM and first else status


def first_host(nodes: str) -> str:
    """The first host of a SLURM node list. Raises LaunchError if scontrol fails."""
    try:
        listing = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise LaunchError(
            f"scontrol cannot list the hosts of SLURM_JOB_NODELIST={nodes} ({error}): set MASTER_ADDR to the first one "
            "on every node"
        ) from error
    return listing.stdout.split()[0]


def script_of(words: list[str]) -> list[str]:
    """Python's arguments for the words after the launcher's name. Raises LaunchError if they name nothing to run."""
    if words and words[0] in ("train", "eval"):
        return ["-m", "rlanything", *words]
    if not words or not words[0].endswith(".py"):
        raise LaunchError(USAGE)
    return words


def main() -> None:
    """Take this node's part in the job."""
    words = sys.argv[1:]
    if words and words[0] in ("-h", "--help"):
        print(f"{USAGE}\n\n{__doc__}")
        return
    command = script_of(words)
    me = membership(os.environ, first_host)
    log = Path("logs") / f"ray_node_{me.rank}.log"
    sys.exit(run_head(me, command, log) if me.rank == 0 else run_worker(me, command, log))


if __name__ == "__main__":
    run_guarded(main, "starts the job anew", versions=False)
