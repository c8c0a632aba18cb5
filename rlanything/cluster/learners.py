"""Learner ranks, one process each, joined by torch.distributed; and the learner that the loop sees."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import ray
import torch

from rlanything.cluster.placement import Slot
from rlanything.cluster.runtime import Runtime, result
from rlanything.cluster.weights import StagedWeights, stage
from rlanything.config import LearnerConfig, ModelConfig
from rlanything.types import Sample


class LearnerRank:
    """A Ray actor: one rank of every learner. All ranks are called alike, in the same order."""

    def __init__(self, rank: int, world: int, log_path: Path, shares_device: bool) -> None:
        self.rank, self.world, self.log_path = rank, world, log_path.with_stem(f"{log_path.stem}_{rank}")
        self.shares_device = shares_device
        self.learners: dict[str, Any] = {}

    def address(self) -> tuple[str, int]:
        """This rank's host and a port that is free there now: where the ranks meet, if it is rank 0."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def join(self, host: str, port: int) -> None:
        """Meet the other ranks."""
        os.environ |= {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": "0",  # a slot's accelerator is the only one that its process sees
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
        }
        # Gloo would take the interface of the host's own name, which on some machines is the loopback.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _interface(ray.util.get_node_ip_address()))
        from rlanything.learner.distributed import start_deepspeed

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        start_deepspeed(self.log_path)

    def load_model(
        self, role: str, model: ModelConfig, config: LearnerConfig, total_update: int, temperature: float, seed: int
    ) -> None:
        """Make this rank's part of a learner."""
        from rlanything.learner.deepspeed import Learner

        self.learners[role] = Learner(model, config, total_update, temperature, seed, self.log_path)
        if self.shares_device:
            self.learners[role].offload()

    def call(self, role: str, method: str, *args: Any) -> Any:
        """What a learner's method returns."""
        with self._on_device(role) as learner:
            return getattr(learner, method)(*args)

    def stage(self, role: str, dtype: torch.dtype) -> StagedWeights:
        """The weights for the engines, which rank 0 alone puts into the object store."""
        with self._on_device(role) as learner:
            return stage(learner.weights(dtype), keep=self.rank == 0)

    @contextmanager
    def _on_device(self, role: str) -> Iterator[Any]:
        """A learner, which has the accelerator's memory meanwhile; where that is shared, only meanwhile."""
        learner = self.learners[role]
        if self.shares_device:
            learner.reload()
        try:
            yield learner
        finally:
            if self.shares_device:
                learner.offload()


def _interface(address: str) -> str:
    """The name of this machine's network interface of that address."""
    found = psutil.net_if_addrs().items()
    return next(name for name, addresses in found if any(a.address == address for a in addresses))


class LearnerGroup:
    """All ranks."""

    def __init__(self, runtime: Runtime, slots: Sequence[Slot], log_path: Path, shares_device: bool) -> None:
        self.ranks = [
            runtime.start(LearnerRank, slot, rank, len(slots), log_path, shares_device)
            for rank, slot in enumerate(slots)
        ]
        [(host, port)] = result([self.ranks[0].address.remote()], "learner rank 0")
        self.call("join", host, port)

    def call(self, method: str, *args: Any) -> list[Any]:
        """What every rank returns."""
        shared = [ray.put(a) for a in args]
        return result([getattr(rank, method).remote(*shared) for rank in self.ranks], "a learner rank")

    def learner(self, role: str, *args: Any) -> RemoteLearner:
        """A model on all ranks; `args` as of `LearnerRank.load_model`."""
        self.call("load_model", role, *args)
        return RemoteLearner(self, role)


class RemoteLearner:
    """What the loop knows of `learner.deepspeed.Learner`, spread over a group's ranks."""

    def __init__(self, group: LearnerGroup, role: str) -> None:
        self.group, self.role = group, role

    def update(self, samples: Sequence[Sample]) -> dict[str, float]:
        """See `Learner.update`; the ranks report alike, but for their own share of the tokens."""
        every: list[dict[str, float]] = self._call("update", samples)
        summed = {
            name: sum(m[name] for m in every) for name in ("entries", "tree_tokens", "sample_tokens", "padded_tokens")
        }
        return every[0] | summed | {"packing_ratio": summed["sample_tokens"] / max(1.0, summed["tree_tokens"])}

    def weights(self, dtype: torch.dtype) -> StagedWeights:
        """The weights for the engines: the driver never holds them."""
        self._staged: StagedWeights = self.group.call("stage", self.role, dtype)[0]
        return self._staged

    def checksum(self, dtype: torch.dtype) -> str:
        """Of the weights that were staged last: rank 0 took it while it gathered them."""
        return self._staged.checksum

    def save(self, folder: Path) -> None:
        """See `Learner.save`; the folder must be one that every rank's node sees."""
        self._call("save", folder)

    def load(self, folder: Path) -> None:
        """See `Learner.load`."""
        self._call("load", folder)

    def export(self, folder: Path) -> None:
        """See `Learner.export`."""
        self._call("export", folder)

    def close(self) -> None:
        """Nothing: the runtime ends the ranks."""

    def _call(self, method: str, *args: Any) -> list[Any]:
        return self.group.call("call", self.role, method, *args)
