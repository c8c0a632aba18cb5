"""One engine in front of its replicas: routing, restarts, weights.

An episode stays with the replica that began it, whose prefix cache holds it. A new episode goes to the replica with the
fewest requests under way. Ray restarts a replica that dies, and the replica takes the current weights from the board;
meanwhile another replica serves its requests.

Weights go through the object store. After a first transfer the receivers know names and shapes, so learners can send
weights directly to them, too (`weights/transfer`).
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

MAX_SESSIONS = 1 << 16  # sessions whose replica is remembered; the episode of an older one has long ended
MAX_CALLS = 10_000  # concurrent calls of one replica; its engine queues them


class ReplicatedEngine:
    """Implements `engines.base.Engine`. Copies in other processes share the replicas, but each copy routes by itself.

    Every method raises EngineError if a replica is dead for good, or not back within `restart_timeout_s` seconds.
    """

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
        self._expected: Expected = ()  # names and shapes of the last transfer, and so of the next one
        self._meeting: tuple[list[str], Meeting] | None = None  # the replicas' processes, and where they met
        self._under_way = [0] * len(self.replicas)  # requests of this copy
        self._replica_of: dict[str, int] = {}  # by session
        self._dead: dict[int, str] = {}  # replicas that Ray does not restart any more, and why they died

    async def generate(self, prompt_ids: list[int], sampling: SamplingParams, n: int = 1) -> list[Completion]:
        """Ask a replica, and another one if it dies. Raises EngineError only if no replica is left."""
        patience = Patience(self.restart_timeout_s, f"every replica of the {self.role} engine")
        restarting: set[int] = set()
        reissued = False
        while True:
            if len(self._dead) == len(self.replicas):
                raise EngineError(
                    f"all replicas of the {self.role} engine are dead: {'; '.join(self._dead.values())}; see their "
                    f"logs, {self.logs}"
                )
            i = self._route(sampling.session, restarting.union(self._dead))
            self._under_way[i] += 1
            try:
                completions: list[Completion] = await self.replicas[i].generate.remote(prompt_ids, sampling, n)
                return completions
            except ActorUnavailableError:
                restarting.add(i)
            except ActorDiedError as error:
                self._dead[i] = cause(error)
            except RayTaskError as error:
                raise unwrapped(error) from None
            finally:
                self._under_way[i] -= 1
            if not reissued:
                reissued = True
                self.board.count.remote(f"engine/{self.role}_reissued")
            if len(restarting.union(self._dead)) == len(self.replicas) > len(self._dead):
                await asyncio.sleep(patience.pause_s())
                restarting.clear()

    def _route(self, session: str, avoid: set[int]) -> int:
        """The session's replica, else the replica with the fewest requests of this process under way.

        The session breaks ties. If the first replica did, all processes would begin with the same one.
        """
        i = self._replica_of.get(session)
        if i is None or i in avoid:
            first = crc32(session.encode())
            candidates = [j for j in range(len(self.replicas)) if j not in avoid]
            i = min(candidates, key=lambda j: (self._under_way[j], (j - first) % len(self.replicas)))
            if session:
                self._replica_of[session] = i
                if len(self._replica_of) > MAX_SESSIONS:
                    del self._replica_of[next(iter(self._replica_of))]
        return i

    def load_weights(self, version: int, tensors: Iterable[tuple[str, Any]]) -> None:
        """Load the weights into all replicas at the same time, directly from the learners if they can meet."""
        loading: list[ray.ObjectRef] = []
        if isinstance(tensors, RemoteWeights):
            meeting = self._meet(tensors) if self._expected and not tensors.are_staged else None
            if meeting:
                loading = [
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
        loading = loading or [replica.load_weights.remote(version, staged) for replica in self.replicas]
        self._results(loading, "load_weights", version, staged)
        self.version = version

    def _meet(self, weights: RemoteWeights) -> Meeting | None:
        """Return the place where these replicas meet the learners: a new one if a replica was restarted since."""
        processes = self._call_all("process_id")
        if not all(processes):  # a replica died asleep, and waits for its memory
            return None
        if self._meeting is None or self._meeting[0] != processes:
            meeting = weights.meeting(len(self.replicas) * self.num_worker, self.on_accelerators)
            self._meeting = processes, meeting
        return self._meeting[1]

    def clear_caches(self) -> None:
        self._call_all("clear_caches")

    def checksum(self) -> str:
        """The checksum of all replicas. Raises EngineError if they differ in version or weights."""
        held: list[tuple[int, str]] = self._call_all("version_and_checksum")
        if {version for version, _ in held} != {self.version} or len({checksum for _, checksum in held}) != 1:
            raise EngineError(
                f"the replicas of the {self.role} engine hold different weights: expected version {self.version} and "
                f"one checksum in all of them, found versions and checksums {held}"
            )
        return held[0][1]

    def sleep(self) -> None:
        ray.get(self.board.set_sleeps.remote(self.role, True))
        self._call_all("sleep")

    def wake(self, cache: bool = True) -> None:
        """Wake the replicas. The board calls the role asleep until its engines have their caches, too."""
        if cache:
            ray.get(self.board.set_sleeps.remote(self.role, False))
        self._call_all("wake", cache)

    def stats(self) -> EngineStats:
        """Sums over the replicas."""
        counters = [vars(stats) for stats in self._call_all("stats")]
        return EngineStats(**{name: sum(counter[name] for counter in counters) for name in counters[0]})

    def close(self) -> None:
        """Do nothing: `Runtime.close` ends the replicas."""

    def _call_all(self, method: str, *args: Any) -> list[Any]:
        """Call a method of all replicas at the same time; return their results."""
        return self._results([getattr(replica, method).remote(*args) for replica in self.replicas], method, *args)

    def _results(self, references: list[ray.ObjectRef], method: str, *args: Any) -> list[Any]:
        """The results of a call of each replica. A replica that restarts is called again, with `method` and `args`."""
        return [self._result(i, reference, method, *args) for i, reference in enumerate(references)]

    def _result(self, i: int, reference: ray.ObjectRef, method: str, *args: Any) -> Any:
        patience = Patience(self.restart_timeout_s, f"replica {i} of the {self.role} engine")
        while True:
            try:
                return ray.get(reference)
            except ActorUnavailableError:
                time.sleep(patience.pause_s())
                reference = getattr(self.replicas[i], method).remote(*args)
            except ActorDiedError as error:
                raise EngineError(
                    f"replica {i} of the {self.role} engine is dead: {cause(error)}; see its log among {self.logs}"
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
    """Start one replica per slot, each with its own log, and wait until all have loaded. `sleeps`: see `start_engine`.

    Raises EngineError if one cannot start.
    """
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
    engine.stats()  # returns once all are up
    return engine
