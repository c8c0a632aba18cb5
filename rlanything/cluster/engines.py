"""The one engine that callers of its replicas see.

An episode stays with the replica that began it, whose prefix cache holds it; a new one goes to the replica with the
fewest requests under way. A replica that dies is started anew by Ray, is given the current weights, and what it was
doing is asked of another meanwhile.

Weights come by the object store, or straight from the learners (`weights/transfer`) once a first transfer has told what
to expect.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from rlanything.cluster.calls import Patience, cause, unwrapped
from rlanything.cluster.learners import RemoteWeights
from rlanything.cluster.replica import HEALTH, EngineReplica
from rlanything.cluster.runtime import Runtime
from rlanything.cluster.weights import stage
from rlanything.config.schema import ClusterConfig, EngineConfig, ModelConfig
from rlanything.engines.base import Completion, EngineError, EngineStats, SamplingParams
from rlanything.plan.placement import Slot
from rlanything.weights.precision import torch_dtype
from rlanything.weights.transfer import Expected, IncomingWeights, Meeting

MAX_SESSIONS = 1 << 16  # remembered; an older episode has long ended
MAX_CALLS = 10_000  # under way at once in one replica; its engine queues them


class ReplicatedEngine:
    """Implements `engines.base.Engine`. Copies in other processes share the replicas; each routes for itself."""

    def __init__(
        self,
        role: str,
        replicas: Sequence[Any],
        board: Any,
        config: EngineConfig,
        on_accelerators: bool,
        restart_timeout_s: float,
        logs: str,
    ) -> None:
        self.role, self.replicas, self.board, self.logs = role, list(replicas), board, logs
        self.restart_timeout_s = restart_timeout_s
        self.max_model_len, self.num_worker = config.max_model_len, config.tensor_parallel_size
        self.on_accelerators = on_accelerators
        self.dtype = torch_dtype(config.dtype, on_accelerators)
        self.version = 0
        self._expected: Expected = ()  # of a transfer: what the last one was
        self._meeting: tuple[list[str], Meeting] | None = None  # of these processes with the learner
        self._under_way = [0] * len(self.replicas)
        self._replica_of: dict[str, int] = {}
        self._dead: dict[int, str] = {}  # for good, and why

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, n: int = 1, images: tuple[str, ...] = ()
    ) -> list[Completion]:
        """See `Engine.generate`. Raises EngineError where the last replica is dead for good."""
        patience = Patience(self.restart_timeout_s, f"every replica of the {self.role} engine")
        restarting: set[int] = set()
        asked_again = False
        while True:
            if len(self._dead) == len(self.replicas):
                raise EngineError(
                    f"all replicas of the {self.role} engine are dead: {'; '.join(self._dead.values())}; their logs "
                    f"are {self.logs}"
                )
            i = self._route(sampling.session, restarting.union(self._dead))
            self._under_way[i] += 1
            try:
                completions: list[Completion] = await self.replicas[i].generate.remote(prompt_ids, sampling, n, images)
                return completions
            except ActorUnavailableError:
                restarting.add(i)
            except ActorDiedError as error:
                self._dead[i] = cause(error)
            except RayTaskError as error:
                raise unwrapped(error) from None
            finally:
                self._under_way[i] -= 1
            if not asked_again:
                asked_again = True
                self.board.count.remote(f"engine/{self.role}_reissued")
            if len(restarting.union(self._dead)) == len(self.replicas) > len(self._dead):
                await asyncio.sleep(patience.pause_s())
                restarting.clear()

    def _route(self, session: str, avoid: set[int]) -> int:
        """The session's replica, else the one with the fewest requests of this process under way.

        Ties go round, from a place that the session gives: else every process would begin with the same replicas.
        """
        i = self._replica_of.get(session)
        if i is None or i in avoid:
            first = crc32(session.encode())
            left = [j for j in range(len(self.replicas)) if j not in avoid]
            i = min(left, key=lambda j: (self._under_way[j], (j - first) % len(self.replicas)))
            if session:
                self._replica_of[session] = i
                if len(self._replica_of) > MAX_SESSIONS:
                    del self._replica_of[next(iter(self._replica_of))]
        return i

    def load_weights(self, version: int, tensors: Iterable[tuple[str, Any]]) -> None:
        """See `Engine.load_weights`; all replicas at once."""
        receiving: list[ray.ObjectRef] = []
        if isinstance(tensors, RemoteWeights):
            meeting = self._meet(tensors) if self._expected and not tensors.are_staged else None
            if meeting:
                receiving = [
                    replica.load_weights.remote(
                        version,
                        IncomingWeights(meeting=meeting, first_worker=i * self.num_worker, expected=self._expected),
                    )
                    for i, replica in enumerate(self.replicas)
                ]
            staged = tensors.stage(meeting)
            self._expected = staged.expected
            if not staged.sent:
                self._meeting = None
        else:
            staged = stage(tensors)
        ray.get(self.board.post.remote(self.role, version, staged))
        by_store = "load_weights", version, staged
        if receiving:
            for i, reference in enumerate(receiving):
                self._answer(i, reference, *by_store)
        else:
            self._every(*by_store)
        self.version = version

    def _meet(self, weights: RemoteWeights) -> Meeting | None:
        """Where these replicas meet the learners; elsewhere once one of them was started anew."""
        processes = self._every("process")
        if not all(processes):  # one died asleep, and waits for its memory
            return None
        if self._meeting is None or self._meeting[0] != processes:
            meeting = weights.meeting(len(self.replicas) * self.num_worker, self.on_accelerators)
            self._meeting = processes, meeting
        return self._meeting[1]

    def clear_caches(self) -> None:
        """See `Engine.clear_caches`."""
        self._every("call", "clear_caches")

    def checksum(self) -> str:
        """See `Engine.checksum`. Raises EngineError where the replicas differ, in version or weights."""
        found: list[tuple[int, str]] = self._every("holds")
        if {version for version, _ in found} != {self.version} or len({checksum for _, checksum in found}) != 1:
            raise EngineError(
                f"the replicas of the {self.role} engine hold different weights; expected version {self.version} of "
                f"all, found versions and checksums {found}"
            )
        return found[0][1]

    def sleep(self) -> None:
        """See `Engine.sleep`."""
        ray.get(self.board.set_sleeps.remote(self.role, True))
        self._every("sleep")

    def wake(self, cache: bool = True) -> None:
        """See `Engine.wake`. The role sleeps until it has its cache too."""
        if cache:
            ray.get(self.board.set_sleeps.remote(self.role, False))
        self._every("wake", cache)

    def stats(self) -> EngineStats:
        """Sums over the replicas."""
        every = [vars(s) for s in self._every("stats")]
        return EngineStats(**{name: sum(s[name] for s in every) for name in every[0]})

    def close(self) -> None:
        """Nothing: the runtime ends the replicas."""

    def _every(self, method: str, *args: Any) -> list[Any]:
        """What each replica returns; one that restarts is called again."""
        references = [getattr(r, method).remote(*args) for r in self.replicas]
        return [self._answer(i, reference, method, *args) for i, reference in enumerate(references)]

    def _answer(self, i: int, reference: ray.ObjectRef, method: str, *args: Any) -> Any:
        patience = Patience(self.restart_timeout_s, f"replica {i} of the {self.role} engine")
        while True:
            try:
                return ray.get(reference)
            except ActorUnavailableError:
                time.sleep(patience.pause_s())
                reference = getattr(self.replicas[i], method).remote(*args)
            except ActorDiedError as error:
                raise EngineError(
                    f"replica {i} of the {self.role} engine is dead: {cause(error)}; its log is of {self.logs}"
                ) from error
            except RayTaskError as error:
                raise unwrapped(error) from None


def start_replicas(
    runtime: Runtime,
    slots: Sequence[Slot],
    role: str,
    model: ModelConfig,
    config: EngineConfig,
    seed: int,
    log_path: Path,
    board: Any,
    cluster: ClusterConfig,
    sleeps: bool,
) -> ReplicatedEngine:
    """One replica a slot, each with a log of its own; they load at the same time. `sleeps`: see `make_engine`."""
    replicas = [
        runtime.start(
            EngineReplica,
            slot,
            role,
            model,
            config.model_copy(update={"own_process": False}),  # it has one
            seed,
            log_path.with_stem(f"{log_path.stem}_{i}"),
            sleeps,
            cluster.restart_timeout_s,
            max_restarts=cluster.num_restart,
            max_concurrency=MAX_CALLS,
            concurrency_groups={HEALTH: 1},
        )
        for i, slot in enumerate(slots)
    ]
    on_accelerators = config.kind == "vllm" and bool(slots[0].devices)
    logs = str(log_path.with_stem(f"{log_path.stem}_*"))
    engine = ReplicatedEngine(role, replicas, board, config, on_accelerators, cluster.restart_timeout_s, logs)
    engine.stats()  # waits until they are up
    return engine
