"""Checks every node of a run before anything large starts on it."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlanything.config.schema import Config, EngineConfig, EnginesConfig, LearnerConfig, TrainingConfig
from rlanything.errors import RunError
from rlanything.processes.versions import check_versions, installed


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """What one node has."""

    host: str
    versions: dict[str, str]
    missing: list[str]
    """Paths of the run that the node does not see."""
    num_device: int
    """Accelerators that torch finds."""
    devices: tuple[str, ...] = ()
    """Names of the accelerators that Ray reserved for this run, as in CUDA_VISIBLE_DEVICES."""
    bfloat16: tuple[bool, bool] = (False, False)
    """Whether its CPU, and its accelerators, multiply bfloat16 in hardware."""


def node_facts(paths: Sequence[str]) -> NodeFacts:
    """The facts of the machine that this runs on."""
    import ray  # imported here, in a process of each node: both take seconds
    import torch

    from rlanything.weights.precision import multiplies_bfloat16

    return NodeFacts(
        host=socket.gethostname(),
        versions=installed(),
        missing=[path for path in paths if not Path(path).exists()],
        num_device=torch.cuda.device_count(),
        # Ray gives them in any order. Sorted by number, neighbours in a slot are neighbours on the board.
        devices=tuple(sorted(map(str, ray.get_gpu_ids()), key=lambda name: (len(name), name))),
        bfloat16=(multiplies_bfloat16(on_accelerator=False), multiplies_bfloat16(on_accelerator=True)),
    )


def with_dtypes(config: Config, nodes: Sequence[NodeFacts]) -> Config:
    """Replace `dtype: auto` by one dtype for all nodes: bfloat16 if all of them multiply it, else float32.

    If each node chose for itself, a learner and its engine could choose differently.
    """
    on_cpu, on_device = ("bfloat16" if all(node.bfloat16[i] for node in nodes) else "float32" for i in (0, 1))
    has_device = config.experiment.num_device > 0

    def of(part: EngineConfig | LearnerConfig, on_accelerator: bool) -> Any:
        chosen = on_device if on_accelerator else on_cpu
        return part.model_copy(update={"dtype": chosen if part.dtype == "auto" else part.dtype})

    engines = {role: of(part, has_device and part.kind == "vllm") for role, part in vars(config.engine).items()}
    learners = {role: of(part, has_device) for role, part in vars(config.training).items()}
    parts = {"engine": EnginesConfig(**engines), "training": TrainingConfig(**learners)}
    return config.model_copy(update=parts)


def check_nodes(nodes: Sequence[NodeFacts], num_device: int) -> None:
    """Raise VersionError or RunError, naming the first node that lacks packages, paths or accelerators."""
    for i, node in enumerate(nodes):
        where = f"node {i} ({node.host})"
        check_versions(node.versions, where)
        if node.missing:
            raise RunError(
                f"{where} does not see {', '.join(node.missing)}: put the run's folder, the models and the tasks on a "
                "file system that all nodes share, under the same path"
            )
        if node.num_device < num_device:
            raise RunError(
                f"{where}: torch finds {node.num_device} accelerators, experiment.num_device={num_device}; install "
                "the packages of constraints/gpu.txt there, look at the driver (nvidia-smi), or lower num_device"
            )
