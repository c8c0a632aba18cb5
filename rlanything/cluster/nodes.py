"""What each node of a run must have, looked at before anything large starts there."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlanything.runs.folder import RunError
from rlanything.versions import check_versions, installed


@dataclass(frozen=True)
class NodeFacts:
    """`missing`: those of the paths asked for that the node does not see; `num_device`: accelerators torch finds;
    `devices`: the names of those that Ray gave to this run."""

    host: str
    versions: dict[str, str]
    missing: list[str]
    num_device: int
    devices: tuple[str, ...] = ()


def node_facts(paths: Sequence[str], count_devices: bool) -> NodeFacts:
    """Look at the machine that this runs on."""
    num_device = 0
    devices: list[int] | list[str] = []
    if count_devices:
        import ray  # imported here: they take seconds, and a CPU node is not asked
        import torch

        num_device, devices = torch.cuda.device_count(), ray.get_gpu_ids()
    missing = [path for path in paths if not Path(path).exists()]
    return NodeFacts(socket.gethostname(), installed(), missing, num_device, tuple(map(str, devices)))


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
                "requirements.txt there, look at the driver (nvidia-smi), or lower num_device"
            )
