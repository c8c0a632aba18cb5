"""Which node this is, of how many, and where the head is: from the variables that job schedulers set. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rlanything.errors import ClearError

DEFAULT_PORT = 6379  # Ray's own
JOB_NODES = "RLANYTHING_JOB_NODES"  # what node 0 tells the script: of how many nodes its job is
JOB_IDS = ("SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID")  # variables that are the same on all nodes of a job


class LaunchError(ClearError, RuntimeError):
    """This node cannot take part: the message says why and what to do."""


@dataclass(frozen=True)
class Membership:
    """Node `rank` of `num_node`; Ray's head listens at host:port, tells its exit status at port + 1, and
    has port + 2 for Ray's clients."""

    rank: int
    num_node: int
    host: str
    port: int


def membership(env: Mapping[str, str], first_host: Callable[[str], str]) -> Membership:
    """From MLP_* (Volcengine), SLURM_* or torchrun's variables, in this order, but torchrun goes before the SLURM that
    started it; without any, one node alone.

    `first_host` gives the first host of a SLURM node list (`scontrol show hostnames`). SLURM counts nodes within a step
    (srun's manual), which may have a part of the job's.
    Raises LaunchError naming a variable that is missing or no number, or that tells of several launchers on a node.
    """
    _check_once_a_node(env)
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
        port += env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun itself listens at its own
    else:
        return Membership(0, 1, "127.0.0.1", DEFAULT_PORT)
    if not 0 <= rank < num:
        raise LaunchError(f"this is node {rank} of {num} by the scheduler's variables, expected 0 to {num - 1}")
    return Membership(rank, num, host, port)


def _check_once_a_node(env: Mapping[str, str]) -> None:
    for name, option in (("SLURM_STEP_TASKS_PER_NODE", "--ntasks-per-node"), ("LOCAL_WORLD_SIZE", "--nproc-per-node")):
        several = [n for n in re.findall(r"\d+", re.sub(r"\(x\d+\)", "", env.get(name, ""))) if int(n) > 1]
        if several:
            raise LaunchError(
                f"{name}={env[name]}: the job starts {several[0]} launchers on a node, expected one, which starts "
                f"whatever the node's accelerators need; use {option}=1"
            )


def job_token(env: Mapping[str, str], command: Sequence[str]) -> bytes:
    """The same on all nodes of a job, another for other jobs: two may have been given one port."""
    told = [*command, *(f"{name}={env[name]}" for name in JOB_IDS if name in env)]
    return hashlib.sha256("\0".join(told).encode()).digest()


def _text(env: Mapping[str, str], name: str) -> str:
    if not env.get(name):
        raise LaunchError(f"{name} is not set: the job's scheduler sets it together with the others, or set it by hand")
    return env[name]


def _number(env: Mapping[str, str], name: str) -> int:
    text = _text(env, name)
    if not re.fullmatch(r"\d+", text):
        raise LaunchError(f"{name}={text!r}: expected a number")
    return int(text)
