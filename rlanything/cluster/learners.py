"""Learners on Ray: one process per rank, joined by torch.distributed, behind the learner that the loop sees."""

import importlib
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
import torch
import torch.distributed as dist

from rlanything.cluster.calls import result
from rlanything.cluster.weights import StagedWeights, stage
from rlanything.config.schema import Config
from rlanything.config.section import Learner
from rlanything.errors import RunError
from rlanything.launch.network import use_interface
from rlanything.plan.placement import Route
from rlanything.types import Sample, SampleSet
from rlanything.weights.transfer import Meeting, Sender
from rlanything.weights.transfer.broadcast import BroadcastMeeting
from rlanything.weights.transfer.ipc import IpcMeeting

logger = logging.getLogger(__name__)


class LearnerRank:
    """A Ray actor: one rank of all learners. All ranks must get the same calls in the same order.

    Calls raise RunError if another rank is lost, or takes more than `cluster.rank_timeout_s` to take part.
    """

    def __init__(self, rank: int, config: Config, logs: Path, shares_device: bool) -> None:
        self.rank, self.config, self.shares_device = rank, config, shares_device
        self.log_path = logs / f"learners_{rank}.log"
        self.learners: dict[str, Any] = {}
        self._senders: dict[str, tuple[Meeting, Sender]] = {}
        importlib.import_module("rlanything.learner.deepspeed")  # takes seconds, and engines load meanwhile

    def free_address(self) -> tuple[str, int]:
        """This rank's host and a port that is free there now. The ranks meet at rank 0's."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def join(self, world: int, host: str, port: int) -> None:
        """Join the process group of `world` ranks at rank 0's `host` and `port`."""
        os.environ |= {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": "0",  # a process sees no other accelerator than its slot's
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
        }
        # If torchrun started the run, its agent has a store. These ranks use another one, which rank 0 starts.
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
        use_interface(ray.util.get_node_ip_address())
        from rlanything.learner.distributed import start_deepspeed

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        with self._together():
            start_deepspeed(self.log_path, self.config.cluster.rank_timeout_s, joins=True)

    def load_model(self, role: Learner, total_update: int, temperature: float) -> None:
        from rlanything.learner import deepspeed

        model, training = self.config.model.of(role), self.config.training.of(role)
        seed = self.config.experiment.seed
        with self._together():
            self.learners[role] = deepspeed.Learner(model, training, total_update, temperature, seed, self.log_path)
        if self.shares_device:
            self.learners[role].offload()

    def call(self, role: str, method: str, *args: Any) -> Any:
        with self._on_device(role) as learner:
            return getattr(learner, method)(*args)

    def shares(self, role: str, sets: Sequence[SampleSet]) -> list[list[list[int]]]:
        """`Learner.shares`; the other ranks only follow, so that the driver reads one answer."""
        found: list[list[list[int]]] = self.learners[role].shares(sets)
        return [] if self.rank else found

    def train(self, role: str, nums: Sequence[int], *samples: list[Sample]) -> dict[str, float]:
        """Train on this rank's sets of samples: `nums` of them, in order, are in each minibatch."""
        sets = iter(samples)
        with self._on_device(role) as learner:
            metrics: dict[str, float] = learner.train([list(islice(sets, num)) for num in nums])
        return metrics

    def stage(self, role: str, dtype: torch.dtype, meeting: Meeting | None) -> StagedWeights:
        """Gather the weights. Rank 0 puts them into the object store; at a `meeting` they are also sent directly."""
        with self._on_device(role) as learner:
            staged = stage(learner.weights(dtype), self.rank == 0, self._sender(role, meeting) if meeting else None)
        if not staged.sent:
            self._senders.pop(role, None)  # closes the connections, so that receivers do not wait for more tensors
        return staged

    def _sender(self, role: str, meeting: Meeting) -> Sender | None:
        if role not in self._senders or self._senders[role][0] != meeting:
            self._senders.pop(role, None)
            try:
                self._senders[role] = meeting, meeting.sender(self.rank)
            except RuntimeError as error:
                logger.warning("the replicas of the %s engine did not come to the meeting: %s", role, error)
                return None
        return self._senders[role][1]

    @contextmanager
    def _on_device(self, role: str) -> Iterator[Any]:
        """A role's learner. If it shares its accelerator, it holds the accelerator's memory only within the block."""
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
        """Turn a failed collective operation into a RunError. (With NCCL its watchdog ends the process instead.)"""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, dist.DistError) or "gloo" in str(error):  # gloo raises a plain RuntimeError
                limit_s = self.config.cluster.rank_timeout_s
                raise RunError(
                    f"learner rank {self.rank} lost another rank, or waited more than cluster.rank_timeout_s="
                    f"{limit_s:g} s for it ({error}); see the ranks' logs in the run's logs folder; the same command "
                    "goes on from the last checkpoint"
                ) from error
            raise


class LearnerGroup:
    """All ranks of the learners."""

    def __init__(self, ranks: Sequence[Any], timeout_s: float) -> None:
        self.ranks, self.timeout_s = ranks, timeout_s
        self.call("join", len(ranks), *self.call("free_address")[0])

    def call(self, method: str, *args: Any) -> list[Any]:
        """Call a method of every rank; return their results. Raises RunError if a rank dies or hangs."""
        shared = [ray.put(a) for a in args]
        return self.call_each(method, [shared] * len(self.ranks))

    def call_each(self, method: str, args: Sequence[Sequence[Any]]) -> list[Any]:
        """`call` with other arguments for each rank. A rank alone reads an object that an argument refers to."""
        calls = [getattr(rank, method).remote(*of_rank) for rank, of_rank in zip(self.ranks, args, strict=True)]
        return result(calls, "a learner rank", "cluster.rank_timeout_s", self.timeout_s)

    def close(self) -> None:
        """Kill the ranks; a call under way raises RunError."""
        for rank in self.ranks:
            ray.kill(rank)


class RemoteWeights:
    """A learner's current weights. The ranks gather them once, when they are first asked for."""

    def __init__(self, group: LearnerGroup, role: str, dtype: torch.dtype, route: Route) -> None:
        self.group, self.role, self.dtype, self.route = group, role, dtype, route
        self.staged: StagedWeights | None = None  # from then on it is too late to send them directly

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self.stage())

    def meeting(self, num_worker: int, on_accelerators: bool) -> Meeting:
        """A new meeting of the ranks and `num_worker` engine workers."""
        if self.route.how == "ipc":
            return IpcMeeting(name=uuid4().hex, senders=self.route.senders, on_accelerators=on_accelerators)
        host, port = self.group.call("free_address")[0]
        return BroadcastMeeting(host=host, port=port, size=1 + num_worker, nccl=on_accelerators)

    def stage(self, meeting: Meeting | None = None) -> StagedWeights:
        """Put the weights into the object store. If there is a `meeting`, send them directly to the workers, too."""
        if self.staged is None:
            of_rank = self.group.call("stage", self.role, self.dtype, meeting)
            self.staged = replace(of_rank[0], sent=all(staged.sent for staged in of_rank))
        return self.staged


class RemoteLearner:
    """The methods of `learner.deepspeed.Learner` that the loop calls, on all ranks."""

    def __init__(self, group: LearnerGroup, role: str, route: Route) -> None:
        self.group, self.role, self.route = group, role, route

    def update(self, sets: Sequence[SampleSet]) -> dict[str, float]:
        """Train on the sets, each on one rank. Ray sends sets below 100 KiB by way of the driver, larger ones directly.

        Token counts are summed over the ranks; other metrics are equal on all of them, or rank 0's own.
        """
        shares = self.group.call("shares", self.role, [replace(one, samples=None) for one in sets])[0]
        metrics: list[dict[str, float]] = self.group.call_each("train", self._train_arguments(sets, shares))
        counts = "entries", "tree_tokens", "sample_tokens", "padded_tokens"
        summed = {name: sum(of_rank[name] for of_rank in metrics) for name in counts}
        return metrics[0] | summed | {"packing_ratio": summed["sample_tokens"] / max(1.0, summed["tree_tokens"])}

    def _train_arguments(self, sets: Sequence[SampleSet], shares: list[list[list[int]]]) -> list[list[Any]]:
        """The arguments of each rank's `train`. Ray hands a rank the samples that references among them refer to."""
        arguments = []
        for rank in range(len(self.group.ranks)):
            own = [minibatch[rank] for minibatch in shares]
            arguments.append([self.role, list(map(len, own)), *(sets[i].samples for part in own for i in part)])
        return arguments

    def weights(self, dtype: torch.dtype) -> RemoteWeights:
        """The weights for the engines. They never pass through the driver."""
        self._latest = RemoteWeights(self.group, self.role, dtype, self.route)
        if self.route.how == "store":  # gather now: the engines may take back their memory before they load
            self._latest.stage()
        return self._latest

    def checksum(self, dtype: torch.dtype) -> str:
        """The checksum of the last weights, which rank 0 computed while it gathered them."""
        return self._latest.stage().checksum

    def save(self, folder: Path) -> None:
        self._call("save", folder)

    def load(self, folder: Path) -> None:
        self._call("load", folder)

    def export(self, folder: Path) -> None:
        self._call("export", folder)

    def _call(self, method: str, *args: Any) -> list[Any]:
        return self.group.call("call", self.role, method, *args)
