"""Three nodes that do not share an address: network namespaces of one machine, joined by a bridge."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from launches import JOIN, assert_nobody_works_in, wait_for_three
from replay import assert_trained_as_one_process
from runs_helpers import command, spread_config

from rlanything.runs.metrics import read_jsonl

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SUBNET = "10.231.77"  # private; seen inside the namespaces alone
SECRET = "what-nobody-else-may-read-0123456789"
SECRETS = {"WANDB_API_KEY": SECRET, "HF_TOKEN": SECRET, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": SECRET}


def ip(line: str) -> None:
    subprocess.run(["ip", *line.split()], check=True, capture_output=True, text=True)


@pytest.fixture
def three_networks():
    """Names of three namespaces with the addresses .1, .2 and .3; the bridge lives in the first."""
    names = [f"rla{os.getpid()}n{i}" for i in range(3)]
    try:
        ip(f"netns add {names[0]}")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces need root and iproute2: {error}")
    try:
        ip(f"-n {names[0]} link add bridge type bridge")
        ip(f"-n {names[0]} link set bridge up")
        for i, name in enumerate(names):
            if i:
                ip(f"netns add {name}")
                ip(f"-n {name} link add eth type veth peer name port{i} netns {names[0]}")
                ip(f"-n {names[0]} link set port{i} master bridge up")
            device = "eth" if i else "bridge"
            ip(f"-n {name} addr add {SUBNET}.{i + 1}/24 dev {device}")
            ip(f"-n {name} link set {device} up")
            ip(f"-n {name} link set lo up")
        yield names
    finally:
        for name in names:
            # A job of a test that failed would be found by the next one: Ray looks at all processes.
            inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
            for process_id in inside.stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(process_id), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def begin(network: str, rank: int, folder: Path, *script: str) -> subprocess.Popen:
    """Node `rank` of a job, in a network of its own."""
    shared = {"MLP_WORKER_NUM": "3", "MLP_WORKER_0_HOST": f"{SUBNET}.1", "MLP_WORKER_0_PORT": "7700"}
    return subprocess.Popen(
        ["ip", "netns", "exec", network, sys.executable, "-m", "rlanything.launch", *script],
        cwd=folder,
        env=os.environ | shared | {"MLP_ROLE_INDEX": str(rank)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_node_whose_network_hangs_is_lost_within_minutes(three_networks, tmp_path):
    (tmp_path / "script.py").write_text(JOIN + "time.sleep(600)")
    nodes = [begin(network, rank, tmp_path, "script.py") for rank, network in enumerate(three_networks)]
    wait_for_three(nodes[0])
    ip(f"-n {three_networks[0]} link set port2 down")
    said = [node.communicate(timeout=200)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [1, 1, 1], said
    assert "node 2 is gone" in said[0] and "Traceback" not in "".join(said), said
    assert_nobody_works_in(tmp_path)


def test_a_job_on_nodes_of_different_addresses_trains_what_one_process_would_and_tells_no_secret(
    world, three_networks, tmp_path, monkeypatch
):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    ray_files = Path(tempfile.mkdtemp(prefix="ray"))  # Ray's sockets allow of some 100 characters
    monkeypatch.setenv("RAY_TMPDIR", str(ray_files))
    config = spread_config(world.games, world.model, tmp_path, "run", "vllm")
    config.cluster.weight_transfer = "broadcast"
    script = command(config, tmp_path)[1:]
    root = Path(__file__).parents[2]
    nodes = [begin(network, rank, root, *script) for rank, network in enumerate(three_networks)]
    said = [node.communicate(timeout=500)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0, 0], said
    records = [r for r in read_jsonl(tmp_path / "run/metrics.jsonl") if r["phase"] == "train"]
    assert [r["step"] for r in records] == [1, 2]
    written = [path for folder in (tmp_path, ray_files, root / "logs") for path in folder.rglob("*") if path.is_file()]
    assert len([path for path in written if path.is_relative_to(ray_files)]) > 3, "Ray's files were not looked at"
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]
    assert not [text for text in said if SECRET in text]
    shutil.rmtree(ray_files)
    assert_trained_as_one_process(config, tmp_path / "run")
