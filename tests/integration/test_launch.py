"""The same command on every node: one head, the others join, and all end with the script's exit status."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from launches import JOIN, LOOPBACK, assert_nobody_works_in, listening, wait_for_three

from rlanything.launch import __main__ as launcher
from rlanything.launch import status
from rlanything.launch.membership import LaunchError, Membership
from rlanything.launch.network import ASK_LOOPBACK, address_of
from rlanything.launch.status import StatusConnection, StatusServer

pytestmark = pytest.mark.integration
EVERY_CORE = True
LAUNCH = launcher.__file__
JOB = b"this job"


def free_port() -> int:
    """A port that is free now, and so are the next two."""
    while True:
        with socket.socket() as first, socket.socket() as second, socket.socket() as third:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
                third.bind(("127.0.0.1", port + 2))
            except (OSError, OverflowError):
                continue
            return port


def launch(
    folder: Path, script: str, host: str = "127.0.0.1", port: int = 0, before: dict[int, str] | None = None
) -> list[subprocess.Popen]:
    """The same command as nodes 0, 1 and 2; `before` is code that some of them execute first."""
    (folder / "script.py").write_text(script)
    run = "import sys; sys.argv = sys.argv[1:]; exec(open(sys.argv[0]).read())"
    shared = {"MLP_WORKER_NUM": "3", "MLP_WORKER_0_HOST": host, "MLP_WORKER_0_PORT": str(port or free_port())}
    return [
        subprocess.Popen(
            [sys.executable, "-c", f"{(before or {}).get(rank, '')}\n{run}", LAUNCH, "script.py"],
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
@pytest.mark.parametrize("host", ["localhost", socket.gethostname()])
def test_nodes_find_one_another_by_the_name_of_the_head(tmp_path, host):
    try:
        address_of(host)
    except OSError as error:
        pytest.skip(f"this machine is in no network: {error}")
    nodes = launch(tmp_path, JOIN, host)
    said = [node.communicate(timeout=180)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0, 0], said


@pytest.mark.slow
def test_a_jobs_ray_refuses_strangers_and_listens_on_the_loopback_alone_where_all_nodes_are_one_machine(tmp_path):
    nodes = launch(tmp_path, JOIN + "print(os.environ['RAY_ADDRESS'], flush=True); time.sleep(600)")
    wait_for_three(nodes[0])
    ask = [sys.executable, "-m", "ray.scripts.scripts", "status", f"--address={nodes[0].stdout.readline().strip()}"]
    stranger = os.environ | ASK_LOOPBACK | {"RAY_AUTH_MODE": "disabled"}
    refused = subprocess.run(ask, capture_output=True, text=True, env=stranger, timeout=60, check=False)
    found = listening([psutil.Process(node.pid) for node in nodes])
    nodes[0].terminate()
    said = [node.communicate(timeout=60)[0] for node in nodes]
    assert refused.returncode != 0 and "token" in (refused.stdout + refused.stderr).lower(), refused
    assert found and found <= LOOPBACK, found
    assert [node.returncode for node in nodes] == [143, 143, 143], said


@pytest.mark.slow
def test_a_job_that_torchrun_starts_on_every_node_uses_ports_beside_its_own(tmp_path):
    (tmp_path / "script.py").write_text(JOIN + "sys.exit(5)")
    shape = ["--nnodes=3", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    line = [str(Path(sys.executable).with_name("torchrun")), *shape]
    nodes = [
        subprocess.Popen(
            [*line, f"--node-rank={rank}", "--no-python", sys.executable, LAUNCH, "script.py"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(3)
    ]
    said = [node.communicate(timeout=180)[0] for node in nodes]
    assert "three nodes" in said[0] and all("exitcode  : 5" in text for text in said), said


@pytest.mark.parametrize("offset", [0, 1])
def test_a_job_whose_port_is_taken_ends_at_once_and_names_it(tmp_path, offset):
    port = free_port()
    # Where node 0 has no port to tell them by, the others wait for one that may still come: ten minutes.
    impatient = "from rlanything.launch import status; status.JOIN_TIMEOUT_S = 5.0" if offset else ""
    with socket.create_server(("127.0.0.1", port + offset)):
        nodes = launch(tmp_path, "raise SystemExit(0)", port=port, before={1: impatient, 2: impatient})
        said = [node.communicate(timeout=60)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [1, 1, 1], said
    assert f"cannot listen at 127.0.0.1:{port + offset}" in said[0] and "Traceback" not in "".join(said), said
    assert not offset or "does not answer" in said[1]


def test_a_script_that_ends_before_the_others_come_ends_them_too(tmp_path):
    late = "import time; time.sleep(6)"
    nodes = launch(tmp_path, "raise SystemExit(3)", before={1: late, 2: late})
    said = [node.communicate(timeout=60)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [3, 3, 3], said


@pytest.mark.parametrize("odd", [0, 2])
def test_a_node_with_other_packages_is_named_on_node_0_and_ends_the_job(tmp_path, odd):
    other = "from rlanything.processes import versions; versions.TESTED['deepspeed'] = '0.1'"
    nodes = launch(tmp_path, JOIN, before={odd: other})
    said = [node.communicate(timeout=60)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [1, 1, 1], said
    assert f"node {odd} ({socket.gethostname()}): deepspeed" in " ".join(said[0].split()), said
    assert "(expected 0.1)" in said[0] and "Traceback" not in "".join(said)
    assert_nobody_works_in(tmp_path)


@pytest.mark.slow
def test_a_ray_that_does_not_start_ends_the_job_and_its_log_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / ("long" * 30)))  # Ray's sockets allow of some 100 characters
    nodes = launch(tmp_path, "import time; time.sleep(600)")
    said = [node.communicate(timeout=120)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [1, 1, 1], said
    assert "could not start or is gone; see logs/ray_node_0.log" in said[0], said
    assert_nobody_works_in(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 2])
def test_a_node_that_is_killed_ends_the_others_and_leaves_nothing_behind(tmp_path, killed):
    nodes = launch(tmp_path, JOIN + "time.sleep(600)")
    wait_for_three(nodes[0])
    nodes[killed].kill()
    said = [node.communicate(timeout=60)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [-9 if rank == killed else 1 for rank in range(3)], said
    assert ("node 2 is gone" if killed else "node 0 is gone") in "".join(said)
    assert_nobody_works_in(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("told", [(0,), (2,), (0, 1, 2)])
def test_sigterm_to_any_node_stops_the_job_in_order(tmp_path, told):
    nodes = launch(tmp_path, JOIN + "time.sleep(600)")
    wait_for_three(nodes[0])
    for rank in reversed(told):
        nodes[rank].terminate()
    said = [node.communicate(timeout=60)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [143, 143, 143] and "".join(said) == "", said
    assert_nobody_works_in(tmp_path)


@pytest.mark.slow
def test_sigterm_to_the_simulation_stops_its_nodes(tmp_path):
    (tmp_path / "script.py").write_text(JOIN + "time.sleep(600)")
    shutil.copytree(Path(__file__).parents[2] / "scripts", tmp_path / "scripts")
    env = os.environ | {"PORT": str(free_port()), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    simulation = subprocess.Popen(
        [tmp_path / "scripts/simulate_nodes.sh", "3", "script.py"], env=env, stdout=subprocess.PIPE, text=True
    )
    wait_for_three(simulation)
    simulation.terminate()
    simulation.communicate(timeout=60)
    assert simulation.returncode == 143
    assert_nobody_works_in(tmp_path)


def test_a_script_that_does_not_stop_is_killed():
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    code = (
        "import os, sys, time\n"
        "from rlanything.launch import __main__ as launch\n"
        "launch.STOP_S, begun = 1.0, time.monotonic()\n"
        f"sys.exit(launch.run_script(['-c', {deaf!r}], dict(os.environ), lambda: time.monotonic() > begun + 3))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 128 + signal.SIGKILL


def test_ctrl_c_stops_the_script_and_is_told_as_that():
    code = (
        "import os, signal, sys, threading\n"
        "from rlanything.launch import __main__ as launch\n"
        "threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "sys.exit(launch.run_script(['-c', 'import time; time.sleep(600)'], dict(os.environ), lambda: False))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 128 + signal.SIGINT


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"cannot listen at 127.0.0.1:{port}"):
            StatusServer("127.0.0.1", port, 3, JOB)


@pytest.fixture
def no_waiting_for_late_nodes(monkeypatch):
    monkeypatch.setattr(status, "LATE_S", 0.0)


def node_of(rank: int, port: int) -> Membership:
    """Node `rank` of a job of three on this machine."""
    return Membership(rank=rank, num_node=3, host="127.0.0.1", port=port)


def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.usefixtures("no_waiting_for_late_nodes")
def test_a_node_that_leaves_is_noticed_and_a_stranger_is_not():
    port = free_port()
    server = StatusServer("127.0.0.1", port + 1, 3, JOB)
    with socket.create_connection(("127.0.0.1", port + 1)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1")
    node = StatusConnection(node_of(2, port), JOB, timeout_s=5)
    assert node.exit_status(0.5) is None and server.lost is None
    node.close()
    until(lambda: server.lost == 2)
    assert not server.stopped
    server.end(1)


@pytest.mark.usefixtures("no_waiting_for_late_nodes")
def test_a_node_of_another_job_that_was_given_the_same_port_does_not_join():
    port = free_port()
    server = StatusServer("127.0.0.1", port + 1, 3, JOB)
    with pytest.raises(LaunchError, match="does not answer .*a job of another command or id has the port"):
        StatusConnection(node_of(1, port), b"that job", timeout_s=0.5)
    assert server.lost is None and not server.stopped
    server.end(0)


def test_a_node_that_was_told_to_stop_says_so_and_hears_how_the_job_ended():
    port = free_port()
    server = StatusServer("127.0.0.1", port + 1, 3, JOB)
    with socket.create_connection(("127.0.0.1", port + 1)) as given_up:  # node 0 was too slow to answer it
        given_up.sendall(JOB + (1).to_bytes(status.RANK_BYTES))
    node = StatusConnection(node_of(1, port), JOB, timeout_s=5)
    node.report_stop()
    until(lambda: server.stopped)
    assert server.lost is None
    server.end(143)
    assert node.exit_status(5) == 143
    with pytest.raises(OSError, match="closed"):
        node.exit_status(5)


def test_a_head_that_nobody_started_is_named():
    port = free_port()
    with pytest.raises(LaunchError, match=f"node 0 does not answer at 127.0.0.1:{port + 1}"):
        StatusConnection(node_of(1, port), JOB, timeout_s=0.5)


def test_a_node_without_scontrol_is_told_to_name_the_head(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LaunchError, match="scontrol cannot list .*gpu.* set MASTER_ADDR"):
        launcher.first_host("gpu[1-4]")
