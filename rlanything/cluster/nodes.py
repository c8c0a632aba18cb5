"""What each node of a run must have, looked at before anything large starts there."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlanything.config.schema import Config, EngineConfig, EnginesConfig, LearnerConfig, TrainingConfig
from rlanything.errors import RunError
from rlanything.processes.versions import check_versions, installed


@dataclass(frozen=True)
class NodeFacts:
    """`missing`: those of the paths asked for that the node does not see; `num_device`: accelerators torch finds;
    `devices`: the names of those that Ray gave to this run; `bfloat16`: whether its CPU and they multiply it."""

    host: str
    versions: dict[str, str]
    missing: list[str]
    num_device: int
    devices: tuple[str, ...] = ()
    bfloat16: tuple[bool, bool] = (False, False)


def node_facts(paths: Sequence[str]) -> NodeFacts:
    """Look at the machine that this runs on."""
    import ray  # imported here, in a process of each node's own: they take seconds
    import torch

    from rlanything.weights.precision import multiplies_bfloat16

    missing = [path for path in paths if not Path(path).exists()]
    # In their own order, so that neighbours are: Ray gives them in any.
    devices = tuple(sorted(map(str, ray.get_gpu_ids()), key=lambda name: (len(name), name)))
    bfloat16 = multiplies_bfloat16(on_accelerator=False), multiplies_bfloat16(on_accelerator=True)
    return NodeFacts(socket.gethostname(), installed(), missing, torch.cuda.device_count(), devices, bfloat16)


def with_dtypes(config: Config, nodes: Sequence[NodeFacts]) -> Config:
    """The configuration with what `dtype: auto` means on all nodes: each by itself might find another, and a learner's
    weights would not be those that an engine holds."""
    on_cpu, on_device = (
        "bfloat16" if all(node.bfloat16[i] for node in nodes) else "float32" for i in range(len(nodes[0].bfloat16))
    )
    has_device = config.experiment.num_device > 0

    def of(part: EngineConfig | LearnerConfig, on_accelerator: bool) -> Any:
        return (
            part.model_copy(update={"dtype": on_device if on_accelerator else on_cpu}) if part.dtype == "auto" else part
        )

    engines = {role: of(part, has_device and part.kind == "vllm") for role, part in vars(config.engine).items()}
    learners = {role: of(part, has_device) for role, part in vars(config.training).items()}
    parts = {"engine": EnginesConfig(**engines), "training": TrainingConfig(**learners)}
    return config.model_copy(update=parts)


def check_nodes(nodes: Sequence[NodeFacts], num_device: int) -> None:
    """Raise VersionError or RunError naming the first node that cannot take its part."""
    for i, node in enumerate(nodes):
        where = f"node {i} ({node.host})"
        check_versions(node.versions, where)
        if node.missing:
            raise RunError(
                f"{where} does not see {', '.join(node.missing)}: put the run's folder, the models and the games on a "
                "file system that all nodes share, under the same path"
            )
        if node.num_device < num_device:
            raise RunError(
                f"{where}: torch finds {node.num_device} accelerators, experiment.num_device={num_device}; install "
                "the packages of constraints/gpu.txt there, look at the driver (nvidia-smi), or lower num_device"
            )
