"""Sections of a run: its name and machines, its tasks, how episodes are played, and how it is measured."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from rlanything.config.section import PathText, PositiveShare, Section, Share


class ExperimentConfig(Section):
    """The run: name, folder, machines, and when it evaluates and saves."""

    name: str = ""
    """Name of the run, which must be set. Its folder is `<output_dir>/<name>`."""
    output_dir: PathText = "runs"
    """Folder of all runs."""
    seed: NonNegativeInt = 0
    """Seed of every random draw."""
    num_node: PositiveInt = 1
    """Machines that take part."""
    num_device: NonNegativeInt = 0
    """Accelerators of each machine. 0 uses the CPU, even if there are accelerators."""
    device_memory_gb: PositiveFloat = 80.0
    """Memory of one accelerator, which the plan must fit into [GiB]."""
    total_step: PositiveInt = 200
    """Steps of the loop. The learning-rate schedule spans them."""
    eval_every: NonNegativeInt = 10
    """Steps between evaluations. 0 evaluates only before the first step and after the last."""
    save_every: PositiveInt = 10
    """Steps between checkpoints."""
    keep_checkpoint: PositiveInt = 2
    """Number of newest checkpoints to keep."""
    resume: Literal["auto", "never"] = "auto"
    """`auto` continues from the newest checkpoint of this name. `never` refuses a folder that holds a run."""
    sinks: list[Literal["tensorboard", "wandb", "trackio"]] = []
    """Where figures go besides metrics.jsonl."""
    num_thread: NonNegativeInt = 0
    """CPU threads of each process. 0 takes all cores if the run is one process, else one thread each."""


class DatasetConfig(Section):
    """The tasks: the domain, its data, and how much of it is used."""

    domain: str = "alfworld"
    """The domain: alfworld, coding, or a class of yours as module:Class."""
    options: dict[str, Any] = {}
    """Keys of the domain's own, which the domain checks."""
    path: PathText = ""
    """Folder of the domain's data: for ALFWorld `<split>.jsonl.xz` or `json_2.1.1/<split>/` (empty: $ALFWORLD_DATA),
    for coding `<split>.json`."""
    train_split: str = "train"
    """Split that the training tasks come from."""
    num_task: NonNegativeInt = 0
    """Number of training tasks to use, drawn with the seed. 0 uses all."""
    prompt: Literal["full", "compact"] = "full"
    """`full` explains the rules, for instruct models. `compact` leaves them out, for tiny models."""


class SandboxConfig(Section):
    """The sandbox, in which the programs that a model writes are executed."""

    allow_unisolated: bool = False
    """Execute programs even if this machine cannot isolate them."""
    num_runner: NonNegativeInt = 0
    """Programs executed at once in each process that plays episodes. 0 takes two for each core."""
    wall_factor: PositiveFloat = 5.0
    """A program may take this many times its problem's limit of processor time, plus one second, of wall time."""
    memory_mb: PositiveInt = 512
    """Memory of a program [MiB]."""
    output_mb: PositiveInt = 16
    """Largest output of a program [MiB]."""
    num_thread: PositiveInt = 32
    """Threads of a program."""
    packages: list[str] = []
    """Packages that programs may import besides the standard library, as pip names them. They are installed once."""


class RolloutConfig(Section):
    """How the policy plays: tasks, episodes, sampling, and what happens to episodes that break."""

    num_trial: PositiveInt = 16
    """Tasks of a step. If there are fewer, all of them."""
    num_rollout_per_trial: PositiveInt = 8
    """Episodes of each task (k in the paper)."""
    max_interaction_step: PositiveInt = 40
    """Longest episode [turns]."""
    max_response_tokens: PositiveInt = 512
    """Longest response of a turn [tokens]."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature."""
    top_p: PositiveShare = 1.0
    """Sample from the likeliest tokens that have this probability together. 1 samples from all."""
    top_k: NonNegativeInt = 0
    """Sample from this many likeliest tokens. 0 samples from all."""
    history: Literal["append_only", "paper"] = "append_only"
    """`append_only` keeps one growing conversation, so that an episode trains in one forward pass. `paper` renders each
    turn's prompt anew, as the paper's code does."""
    allow_biased_sampling: bool = False
    """Permit `top_p < 1` or `top_k > 0` in training, although the learner's logprobs are those of all tokens."""
    max_staleness: Annotated[int, Field(ge=0, le=1)] = 0
    """1 plays a step's episodes during the updates of the step before, with the weights before those updates."""
    max_concurrent: PositiveInt = 256
    """Episodes in progress at once."""
    env_timeout_s: PositiveFloat = 60.0
    """Longest reset or step of an environment [s]. TextWorld's episodes take turns, and waiting counts."""
    num_retry: NonNegativeInt = 2
    """How often an episode that the infrastructure broke is played again."""
    min_group: PositiveInt = 2
    """A task with fewer valid episodes is dropped from the step."""
    max_failure_rate: Share = 0.25
    """Share of broken episodes above which the run stops."""


class EvaluationConfig(Section):
    """How the policy is measured, during a training or by itself."""

    splits: list[str] = ["eval_in_distribution", "eval_out_of_distribution"]
    """Splits to measure on."""
    num_task: NonNegativeInt = 128
    """Tasks of each split. 0 takes all."""
    num_rollout: PositiveInt = 1
    """Episodes of each task."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature. 0 takes the likeliest token."""
    judge: bool = True
    """Have the reward model judge these episodes, to measure it on the policy's own."""


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
