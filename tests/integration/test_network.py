"""Three nodes that do not share an address: network namespaces of one machine, joined by a bridge."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from replay import assert_trained_as_one_process
from runs_helpers import command, spread_config

from rlanything.runs.metrics import read_jsonl

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SUBNET = "10.231.77"  # private; seen inside the namespaces alone


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
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_a_job_on_nodes_of_different_addresses_trains_what_one_process_would(world, three_networks, tmp_path):
    config = spread_config(world.games, world.model, tmp_path, "run", "vllm")
    config.cluster.weight_transfer = "broadcast"
    script = command(config, tmp_path)[1:]
    shared = {"MLP_WORKER_NUM": "3", "MLP_WORKER_0_HOST": f"{SUBNET}.1", "MLP_WORKER_0_PORT": "7700"}
    nodes = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-m", "rlanything.cluster.launch", *script],
            cwd=Path(__file__).parents[2],
            env=os.environ | shared | {"MLP_ROLE_INDEX": str(i)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i, name in enumerate(three_networks)
    ]
    said = [node.communicate(timeout=500)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0, 0], said
    records = [r for r in read_jsonl(tmp_path / "run/metrics.jsonl") if r["phase"] == "train"]
    assert [r["step"] for r in records] == [1, 2]
    assert_trained_as_one_process(config, tmp_path / "run")
