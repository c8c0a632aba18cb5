"""One engine in front of its replicas: routing, restarts, weights.

An episode stays with the replica that began it, whose prefix cache holds it. A new episode goes to the replica with the
fewest requests under way. Ray restarts a replica that dies, and the replica takes the current weights from the board;
meanwhile another replica serves its requests.

Weights go through the object store. After a first transfer the receivers know names and shapes, so that learners can
also send weights directly to them (`weights/transfer`).
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from rlanything.cluster.calls import Patience, cause, unwrapped
from rlanything.cluster.learners import RemoteWeights
from rlanything.config.schema import Config
from rlanything.config.section import Role
from rlanything.engines.base import Completion, EngineError, EngineStats, SamplingParams
from rlanything.types import Image
from rlanything.weights.precision import torch_dtype
from rlanything.weights.transfer import Expected, IncomingWeights, Meeting

MAX_SESSIONS = 1 << 16  # sessions whose replica is remembered; the episode of an older one has long ended


class ReplicatedEngine:
    """Implements `engines.base.Engine`. Copies in other processes share the replicas, but each copy routes by itself.

    Every method raises EngineError if a replica is dead for good, or not back within `cluster.restart_timeout_s`.
    """

    def __init__(self, role: Role, config: Config, replicas: Sequence[Any], board: Any, logs: str) -> None:
        """`board` is the run's Board, `logs` the pattern of the replicas' log files."""
        engine = config.engine.of(role)
        self.role, self.replicas, self.board, self.logs = role, list(replicas), board, logs
        self.restart_timeout_s = config.cluster.restart_timeout_s
        self.max_model_len, self.num_worker = engine.max_model_len, engine.tensor_parallel_size
        self.on_accelerators = engine.kind == "vllm" and config.experiment.num_device > 0
        self.dtype = torch_dtype(engine.dtype, self.on_accelerators)
        self.version = 0
        self._expected: Expected = ()  # names and shapes of the last transfer, and so of the next one
        self._meeting: tuple[list[str], Meeting] | None = None  # the replicas' processes, and where they met
        self._under_way = [0] * len(self.replicas)  # requests of this copy
        self._replica_of: dict[str, int] = {}  # by session
        self._dead: dict[int, str] = {}  # replicas that Ray does not restart any more, and why they died

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, n: int = 1, images: Sequence[Image] = ()
    ) -> list[Completion]:
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
        assert isinstance(tensors, RemoteWeights)  # a cluster's learners give no others
        meeting = self._meet(tensors) if self._expected and tensors.staged is None else None
        loading: list[ray.ObjectRef] = []
        if meeting:
            for i, replica in enumerate(self.replicas):
                first_worker = i * self.num_worker
                incoming = IncomingWeights(meeting=meeting, first_worker=first_worker, expected=self._expected)
                loading.append(replica.load_weights.remote(version, incoming))
        staged = tensors.stage(meeting)
        self._expected = staged.expected
        if not staged.sent:
            self._meeting = None
        ray.get(self.board.post.remote(self.role, version, staged))
        self._call_all("load_weights", version, staged, under_way=loading)
        self.version = version

    def _meet(self, weights: RemoteWeights) -> Meeting | None:
        """The place where replicas and learners meet, a new one after a restart; None if a replica has no engine."""
        processes = self._call_all("process_id")
        if not all(processes):  # a replica died asleep, and waits for its memory
            return None
        if self._meeting is None or self._meeting[0] != processes:
            num_worker = len(self.replicas) * self.num_worker
            self._meeting = processes, weights.meeting(num_worker, self.on_accelerators)
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
        ray.get(self.board.set_asleep.remote(self.role, True))
        self._call_all("sleep")

    def wake(self, cache: bool = True) -> None:
        """Wake the replicas. The board calls the role asleep until its engines have their caches, too."""
        if cache:
            ray.get(self.board.set_asleep.remote(self.role, False))
        self._call_all("wake", cache)

    def stats(self) -> EngineStats:
        """Sums over the replicas."""
        counters = [vars(stats) for stats in self._call_all("stats")]
        return EngineStats(**{name: sum(counter[name] for counter in counters) for name in counters[0]})

    def close(self) -> None:
        """Do nothing: `Runtime.close` ends the replicas."""

    def _call_all(self, method: str, *args: Any, under_way: Sequence[ray.ObjectRef] = ()) -> list[Any]:
        """Call a method of all replicas at once, or wait for calls `under_way`; call one that restarts again."""
        calls = under_way or [getattr(replica, method).remote(*args) for replica in self.replicas]
        return [self._result(i, call, method, *args) for i, call in enumerate(calls)]

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
