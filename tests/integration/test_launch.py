"""The same command on every node: one head, the others join, and all end with the script's exit status."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rlanything.cluster.launch import StatusServer, wait_for_head
from rlanything.cluster.membership import LaunchError, Membership

pytestmark = pytest.mark.integration
JOIN = """
import os, sys, time, ray
ray.init(os.environ["RAY_ADDRESS"], logging_level="ERROR")
while sum(n["Alive"] for n in ray.nodes()) < 3:
    time.sleep(0.2)
print("three nodes", flush=True)
"""


def free_port() -> int:
    """A port that is free now, and so is the next."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            try:
                second.bind(("127.0.0.1", first.getsockname()[1] + 1))
            except OSError:
                continue
            return first.getsockname()[1]


def launch(folder: Path, script: str) -> list[subprocess.Popen]:
    """The same command as nodes 0, 1 and 2; node 0's output is piped."""
    (folder / "script.py").write_text(script)
    port = str(free_port())
    shared = {"MLP_WORKER_NUM": "3", "MLP_WORKER_0_HOST": "127.0.0.1", "MLP_WORKER_0_PORT": port}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "rlanything.cluster.launch", "script.py"],
            cwd=folder,
            env=os.environ | shared | {"MLP_ROLE_INDEX": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(3)
    ]


@pytest.mark.slow
def test_every_node_ends_with_the_scripts_exit_status(tmp_path):
    nodes = launch(tmp_path, JOIN + "sys.exit(7)")
    said = [node.communicate(timeout=180)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [7, 7, 7], said
    assert "three nodes" in said[0]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 2])
def test_a_node_that_is_killed_ends_the_others_and_leaves_nothing_behind(tmp_path, killed):
    nodes = launch(tmp_path, JOIN + "time.sleep(600)")
    assert nodes[0].stdout.readline() == "three nodes\n"
    nodes[killed].kill()
    said = [node.communicate(timeout=60)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [-9 if rank == killed else 1 for rank in range(3)], said
    assert ("node 2 is gone" if killed else "node 0 or this node's Ray is gone") in "".join(said)
    deadline = time.monotonic() + 30
    while alive := [p for p in psutil.process_iter(["cwd", "cmdline"]) if p.info["cwd"] == str(tmp_path)]:
        assert time.monotonic() < deadline, [p.info["cmdline"] for p in alive]
        time.sleep(0.5)


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"cannot listen at 127.0.0.1:{port}"):
            StatusServer("127.0.0.1", port, 3)


def test_a_node_that_leaves_is_noticed_and_a_stranger_is_not():
    port = free_port()
    server = StatusServer("127.0.0.1", port + 1, 3)
    with socket.create_connection(("127.0.0.1", port + 1)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1")
    node = wait_for_head(Membership(2, 3, "127.0.0.1", port), timeout_s=5)
    time.sleep(0.5)
    assert server.lost is None
    node.close()
    deadline = time.monotonic() + 10
    while server.lost is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert server.lost == 2
    server.tell(1)


def test_a_head_that_nobody_started_is_named():
    port = free_port()
    with pytest.raises(LaunchError, match=f"node 0 does not answer at 127.0.0.1:{port + 1}"):
        wait_for_head(Membership(1, 2, "127.0.0.1", port), timeout_s=0.5)
