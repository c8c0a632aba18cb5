"""The configuration of the processes of a run."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat

from rlanything.config.section import Section


class ClusterConfig(Section):
    """Processes on several devices and machines, and how they recover."""

    placement: Literal["colocated", "split"] = "colocated"
    """`colocated`: every accelerator serves, then learns. `split`: each does one of them."""
    num_learner: NonNegativeInt = 0
    """Learner ranks, each of which trains both models. 0 takes one for each accelerator, or one on CPUs."""
    num_env_host: NonNegativeInt = 0
    """Processes that hold the episodes. 0 takes one for each machine."""
    num_restart: NonNegativeInt = 3
    """Restarts of each engine or environment host that dies, over the whole run."""
    weight_transfer: Literal["auto", "store", "broadcast", "ipc"] = "auto"
    """How new weights reach the engines. `store`: shared memory, always used for LoRA and by replicas that miss a
    direct transfer. `broadcast`: NCCL or gloo. `ipc`: from the learner rank beside an engine, by CUDA IPC or shared
    memory. `auto`: with vLLM on accelerators ipc if learners share all of them, broadcast if they share none, and store
    otherwise."""
    join_timeout_s: PositiveFloat = 600.0
    """How long the run waits for all machines to join [s]."""
    rank_timeout_s: PositiveFloat = 1800.0
    """How long a learner rank may take to join a collective operation [s]."""
    restart_timeout_s: PositiveFloat = 1800.0
    """How long an engine may take to start, and a dead engine or host to answer again [s]."""
