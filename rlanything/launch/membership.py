"""Which node this is, of how many, and where node 0 is: read from the variables that job schedulers set. Pure."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rlanything.errors import ClearError

DEFAULT_PORT = 6379  # Ray's own
JOB_NODES = "RLANYTHING_JOB_NODES"  # node 0 tells the script in this variable how many nodes the job has
JOB_IDS = ("SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID")  # variables with one value on all nodes of a job


class LaunchError(ClearError, RuntimeError):
    """This node cannot take part in the job: the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """This node's place in its job."""

    rank: int
    """0 for the node that starts Ray's head and the script."""
    num_node: int
    host: str
    """Name or address of node 0."""
    port: int
    """Of Ray's head on node 0; the status server listens at port + 1, Ray's client server at port + 2."""


def membership(env: Mapping[str, str], first_host: Callable[[str], str]) -> Membership:
    """Read MLP_* (Volcengine), SLURM_* or torchrun's variables; without any, the job is this node alone.

    MLP_* goes before SLURM_*, and SLURM_* before torchrun, unless torchrun itself was started within a SLURM job.
    `first_host` returns the first host of a SLURM node list (`scontrol show hostnames`). A SLURM step may use a part of
    its job's nodes, and SLURM_NODEID counts within the step (srun's manual), so the step's variables are preferred.
    Raises LaunchError, naming the variable, if one is missing or no number, or if several launchers run on a node.
    """
    _check_one_launcher(env)
    if "MLP_ROLE_INDEX" in env:
        rank, num = _number(env, "MLP_ROLE_INDEX"), _number(env, "MLP_WORKER_NUM")
        host, port = _text(env, "MLP_WORKER_0_HOST"), _number(env, "MLP_WORKER_0_PORT")
    elif "SLURM_NODEID" in env and "TORCHELASTIC_RUN_ID" not in env:
        step = "SLURM_STEP_NODELIST" in env
        rank, num = _number(env, "SLURM_NODEID"), _number(env, "SLURM_STEP_NUM_NODES" if step else "SLURM_NNODES")
        nodes = "SLURM_STEP_NODELIST" if step else "SLURM_JOB_NODELIST"
        host = env.get("MASTER_ADDR") or (first_host(_text(env, nodes)) if num > 1 else "127.0.0.1")
        port = _number(env, "MASTER_PORT") if "MASTER_PORT" in env else DEFAULT_PORT
    elif "MASTER_ADDR" in env:
        rank_name = next((n for n in ("NODE_RANK", "GROUP_RANK", "RANK") if n in env), "RANK")
        num_name = next((n for n in ("NNODES", "GROUP_WORLD_SIZE", "WORLD_SIZE") if n in env), "WORLD_SIZE")
        rank, num = _number(env, rank_name), _number(env, num_name)
        host, port = _text(env, "MASTER_ADDR"), _number(env, "MASTER_PORT")
        port += env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun's own store has MASTER_PORT
    else:
        rank, num, host, port = 0, 1, "127.0.0.1", DEFAULT_PORT
    if not 0 <= rank < num:
        raise LaunchError(f"this is node {rank} of {num} by the scheduler's variables, expected 0 to {num - 1}")
    return Membership(rank=rank, num_node=num, host=host, port=port)


def _check_one_launcher(env: Mapping[str, str]) -> None:
    for name, option in (("SLURM_STEP_TASKS_PER_NODE", "--ntasks-per-node"), ("LOCAL_WORLD_SIZE", "--nproc-per-node")):
        counts = re.findall(r"\d+", re.sub(r"\(x\d+\)", "", env.get(name, "")))  # "1,8(x3)": 1 on a node, 8 on three
        if several := [count for count in counts if int(count) > 1]:
            raise LaunchError(
                f"{name}={env[name]}: the job starts {several[0]} launchers on a node, expected one, which starts "
                f"all processes that the node's accelerators need; use {option}=1"
            )


def job_token(env: Mapping[str, str], command: Sequence[str]) -> bytes:
    """A digest of the job's command and id: equal on all nodes of a job, different between jobs on the same port."""
    parts = [*command, *(f"{name}={env[name]}" for name in JOB_IDS if name in env)]
    return hashlib.sha256("\0".join(parts).encode()).digest()


def _text(env: Mapping[str, str], name: str) -> str:
    if not env.get(name):
        raise LaunchError(f"{name} is not set, but other variables of its scheduler are: set it by hand on every node")
    return env[name]


def _number(env: Mapping[str, str], name: str) -> int:
    text = _text(env, name)
    if not re.fullmatch(r"\d+", text):
        raise LaunchError(f"{name}={text!r}: expected a number")
    return int(text)
