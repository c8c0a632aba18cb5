"""Each scheduler's variables name the rank, the number of nodes and node 0."""

import pytest

from rlanything.launch.membership import LaunchError, Membership, job_token, membership


def first_host(nodes: str) -> str:
    return nodes.replace("[", "").split("-")[0]


MLP = {"MLP_ROLE_INDEX": "2", "MLP_WORKER_NUM": "8", "MLP_WORKER_0_HOST": "10.0.0.1", "MLP_WORKER_0_PORT": "7000"}
SLURM = {"SLURM_NODEID": "1", "SLURM_NNODES": "4", "SLURM_JOB_NODELIST": "gpu[1-4]"}
STEP = {"SLURM_STEP_NODELIST": "gpu[3-4]", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
AGENT = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True"}
TORCHRUN = {"MASTER_ADDR": "h", "MASTER_PORT": "29500", "RANK": "3", "WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (MLP, (2, 8, "10.0.0.1", 7000)),
        (SLURM, (1, 4, "gpu1", 6379)),
        (SLURM | {"MASTER_ADDR": "head", "MASTER_PORT": "7001"}, (1, 4, "head", 7001)),
        (SLURM | STEP, (1, 2, "gpu3", 6379)),
        (SLURM | TORCHRUN | AGENT | {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}, (1, 2, "h", 29501)),
        ({"SLURM_NODEID": "0", "SLURM_NNODES": "1"}, (0, 1, "127.0.0.1", 6379)),
        (TORCHRUN, (3, 4, "h", 29500)),
        (TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, (3, 4, "h", 29501)),
        (TORCHRUN | {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}, (1, 2, "h", 29500)),
        ({}, (0, 1, "127.0.0.1", 6379)),
    ],
)
def test_every_schedulers_variables_are_read(env, expected):
    rank, num_node, host, port = expected
    assert membership(env, first_host) == Membership(rank=rank, num_node=num_node, host=host, port=port)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({k: v for k, v in MLP.items() if k != "MLP_WORKER_0_HOST"}, "MLP_WORKER_0_HOST is not set"),
        (MLP | {"MLP_WORKER_0_PORT": "http"}, "MLP_WORKER_0_PORT='http': expected a number"),
        (MLP | {"MLP_ROLE_INDEX": "8"}, "node 8 of 8"),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1,8(x3)"}, "starts 8 launchers on a node, .* --ntasks-per-node=1"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "8"}, "LOCAL_WORLD_SIZE=8: .* --nproc-per-node=1"),
    ],
)
def test_a_variable_that_does_not_fit_is_named(env, message):
    with pytest.raises(LaunchError, match=message):
        membership(env, first_host)


def test_all_nodes_of_a_job_have_one_token_and_other_jobs_have_others():
    command, job = ["alfworld_rl.py", "config=a.yaml"], {"SLURM_JOB_ID": "7"}
    assert job_token({**job, "SLURM_NODEID": "0"}, command) == job_token({**job, "SLURM_NODEID": "1"}, command)
    assert len({job_token(env, line) for env in (job, {}) for line in (command, command[:1])}) == 4
