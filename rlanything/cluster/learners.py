"""Learner ranks, one process each, joined by torch.distributed; and the learner that the loop sees."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
import torch
import torch.distributed as dist

from rlanything.cluster.calls import Limit, result
from rlanything.cluster.runtime import Runtime
from rlanything.cluster.weights import StagedWeights, stage
from rlanything.config.schema import LearnerConfig, ModelConfig
from rlanything.errors import RunError
from rlanything.launch.addresses import use_interface
from rlanything.plan.placement import Route, Slot
from rlanything.types import Sample
from rlanything.weights.transfer import Meeting, Sender
from rlanything.weights.transfer.broadcast import BroadcastMeeting
from rlanything.weights.transfer.ipc import IpcMeeting

logger = logging.getLogger(__name__)


class LearnerRank:
    """A Ray actor: one rank of every learner. All ranks are called alike, in the same order."""

    def __init__(self, rank: int, world: int, log_path: Path, shares_device: bool, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.rank, self.world, self.log_path = rank, world, log_path.with_stem(f"{log_path.stem}_{rank}")
        self.shares_device = shares_device
        self.learners: dict[str, Any] = {}
        self._senders: dict[str, tuple[Meeting, Sender]] = {}

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
        # Of a torchrun around the run: rank 0 has a store of its own.
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
        use_interface(ray.util.get_node_ip_address())
        from rlanything.learner.distributed import start_deepspeed

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        with self._together():
            start_deepspeed(self.log_path, self.timeout_s)

    def load_model(
        self, role: str, model: ModelConfig, config: LearnerConfig, total_update: int, temperature: float, seed: int
    ) -> None:
        """Make this rank's part of a learner."""
        from rlanything.learner.deepspeed import Learner

        with self._together():
            self.learners[role] = Learner(model, config, total_update, temperature, seed, self.log_path)
        if self.shares_device:
            self.learners[role].offload()

    def call(self, role: str, method: str, *args: Any) -> Any:
        """What a learner's method returns."""
        with self._on_device(role) as learner:
            return getattr(learner, method)(*args)

    def stage(self, role: str, dtype: torch.dtype, meeting: Meeting | None) -> StagedWeights:
        """The weights for the engines, which rank 0 alone puts into the object store. Whoever has workers to send them
        to, where there is a meeting, does that too."""
        with self._on_device(role) as learner:
            staged = stage(learner.weights(dtype), self.rank == 0, self._sender(role, meeting) if meeting else None)
        if not staged.sent:
            self._senders.pop(role, None)  # hangs up: those that still wait for tensors learn of it
        return staged

    def _sender(self, role: str, meeting: Meeting) -> Sender | None:
        if role not in self._senders or self._senders[role][0] != meeting:
            self._senders.pop(role, None)
            try:
                self._senders[role] = meeting, meeting.sender(self.rank)
            except RuntimeError as error:
                logger.warning("the replicas of the %s engine did not meet: %s", role, error)
                return None
        return self._senders[role][1]

    @contextmanager
    def _on_device(self, role: str) -> Iterator[Any]:
        """A learner, which has the accelerator's memory meanwhile; where that is shared, only meanwhile."""
        learner = self.learners[role]
        if self.shares_device:
            learner.reload()
        try:
            with self._together():
                yield learner
        finally:
            if self.shares_device:
                learner.offload()

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Raises RunError where another rank does not take part. NCCL's watchdog ends the process instead."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, dist.DistError) or "gloo" in str(error):  # gloo has no kind of its own
                raise RunError(
                    f"learner rank {self.rank} lost another one, or waited more than cluster.rank_timeout_s="
                    f"{self.timeout_s:g} s for it ({error}); the ranks' logs are in the run's logs folder; the same "
                    "command goes on from the last checkpoint"
                ) from error
            raise


class LearnerGroup:
    """All ranks."""

    def __init__(
        self, runtime: Runtime, slots: Sequence[Slot], log_path: Path, shares_device: bool, timeout_s: float
    ) -> None:
        self.ranks = [
            runtime.start(LearnerRank, slot, rank, len(slots), log_path, shares_device, timeout_s)
            for rank, slot in enumerate(slots)
        ]
        self.timeout_s = timeout_s
        self.call("join", *self.place())

    def place(self) -> tuple[str, int]:
        """Rank 0's host, and a port that is free there."""
        address: tuple[str, int] = self.call("address")[0]
        return address

    def call(self, method: str, *args: Any) -> list[Any]:
        """What every rank returns. Raises RunError where a rank is late: what they do, they do together."""
        shared = [ray.put(a) for a in args]
        calls = [getattr(rank, method).remote(*shared) for rank in self.ranks]
        return result(calls, "a learner rank", Limit("cluster.rank_timeout_s", self.timeout_s))

    def close(self) -> None:
        """Kill the ranks; a call under way raises RunError."""
        for rank in self.ranks:
            ray.kill(rank)

    def learner(self, role: str, route: Route, *args: Any) -> RemoteLearner:
        """A model on all ranks; `args` as of `LearnerRank.load_model`."""
        self.call("load_model", role, *args)
        return RemoteLearner(self, role, route)


class RemoteWeights:
    """A learner's present weights, which its ranks gather once, when they are first asked for them."""

    def __init__(self, group: LearnerGroup, role: str, dtype: torch.dtype, route: Route) -> None:
        self.group, self.role, self.dtype, self.route = group, role, dtype, route
        self._staged: StagedWeights | None = None

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self.stage())

    @property
    def are_staged(self) -> bool:
        """Whether it is too late to send them straight to engines."""
        return self._staged is not None

    def meeting(self, num_worker: int, on_accelerators: bool) -> Meeting:
        """Where ranks and workers find each other."""
        if self.route.how == "ipc":
            return IpcMeeting(name=uuid4().hex, senders=self.route.senders, on_accelerators=on_accelerators)
        host, port = self.group.place()
        return BroadcastMeeting(host=host, port=port, size=1 + num_worker, nccl=on_accelerators)

    def stage(self, meeting: Meeting | None = None) -> StagedWeights:
        """In the object store; on the way there, straight to those that the ranks meet."""
        if self._staged is None:
            staged, *others = self.group.call("stage", self.role, self.dtype, meeting)
            self._staged = replace(staged, sent=staged.sent and all(other.sent for other in others))
        return self._staged


class RemoteLearner:
    """What the loop knows of `learner.deepspeed.Learner`, spread over a group's ranks."""

    def __init__(self, group: LearnerGroup, role: str, route: Route) -> None:
        self.group, self.role, self.route = group, role, route

    def update(self, samples: Sequence[Sample]) -> dict[str, float]:
        """See `Learner.update`; the ranks report alike, but for their own share of the tokens."""
        every: list[dict[str, float]] = self._call("update", samples)
        summed = {
            name: sum(m[name] for m in every) for name in ("entries", "tree_tokens", "sample_tokens", "padded_tokens")
        }
        return every[0] | summed | {"packing_ratio": summed["sample_tokens"] / max(1.0, summed["tree_tokens"])}

    def weights(self, dtype: torch.dtype) -> RemoteWeights:
        """The weights for the engines: the driver never holds them."""
        self._latest = RemoteWeights(self.group, self.role, dtype, self.route)
        if self.route.how == "store":  # before an engine takes back its memory
            self._latest.stage()
        return self._latest

    def checksum(self, dtype: torch.dtype) -> str:
        """Of the weights that were staged last: rank 0 took it while it gathered them."""
        return self._latest.stage().checksum

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
