"""One engine in a process of its own, which Ray restarts if it dies.

A restarted replica takes the current weights from the object store before it serves anyone. A replica that loses the
sender in the middle of a transfer holds half of the new weights: it ends itself, and is restarted like that.
"""

import os
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import ray

from rlanything.cluster.board import board, was_restarted
from rlanything.config.schema import Config
from rlanything.config.section import Role
from rlanything.engines import check_model, start_engine
from rlanything.engines.base import (
    Completion,
    Engine,
    EngineDead,
    EngineError,
    EngineStats,
    SamplingParams,
    peak_memory_gb,
)
from rlanything.launch.network import use_interface
from rlanything.processes.watchdog import Watchdog
from rlanything.types import Image

HEALTH = "health"  # the concurrency group of calls that have a thread of their own
# Ray's options. The engine itself queues concurrent calls.
REPLICA_OPTIONS: dict[str, Any] = {"max_concurrency": 10_000, "concurrency_groups": {HEALTH: 1}}


class EngineReplica:
    """A Ray actor: one engine, with the methods of `engines.base.Engine`.

    A replica that restarts while its role's engines sleep makes no engine before they wake, since the learners have the
    memory. Until then `generate`, `clear_caches` and `version_and_checksum` raise EngineError.
    """

    def __init__(self, role: Role, config: Config, log_path: Path, sleeps: bool) -> None:
        """`sleeps`: see `start_engine`."""
        use_interface(ray.util.get_node_ip_address())
        self.restarted = was_restarted(f"engine/{role}_restarts")
        self._role, self._config, self._log_path, self._sleeps = role, config, log_path, sleeps
        self._watchdog = Watchdog(config.engine.of(role).step_timeout_s, log_path)
        self._engine: Engine | None = None
        if not self.restarted or not ray.get(board().asleep.remote(role)):
            self._start()

    def _start(self) -> None:
        """Make the engine.

        If that fails after a restart, as when the memory of the process before is not free yet, end the process, so
        that Ray tries once more: Ray restarts no actor whose `__init__` raises.
        """
        config, model = self._config, self._config.model.of(self._role)
        engine = config.engine.of(self._role).model_copy(update={"own_process": False})  # this is one
        try:
            with Watchdog(config.cluster.restart_timeout_s, self._log_path, "cluster.restart_timeout_s"):
                check_model(model, engine)  # on this node, and again at a restart
                seed = config.experiment.seed
                self._engine = start_engine(model, engine, seed, self._log_path, alone=True, sleeps=self._sleeps)
                if self.restarted:
                    self._take_current_weights(self._engine)
        except Exception as error:
            if self.restarted:
                self._end(error)
            raise

    def _take_current_weights(self, engine: Engine) -> None:
        current = ray.get(board().current.remote(self._role))
        if current is None:  # the weights of the model's files are current
            return
        version, weights = current
        engine.load_weights(version, weights)
        if (found := engine.checksum()) != weights.checksum:
            raise EngineError(
                f"a restarted replica of the {self._role} engine differs from the learner's weights of version "
                f"{version}: found checksum {found}, expected {weights.checksum}"
            )

    @property
    def engine(self) -> Engine:
        """The engine. Raises EngineError if it is not made yet."""
        if self._engine is None:
            raise EngineError(f"the {self._role} engine was restarted while it slept; wake it first")
        return self._engine

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, n: int, images: Sequence[Image]
    ) -> list[Completion]:
        try:
            return await self.engine.generate(prompt_ids, sampling, n, images)
        except EngineDead as error:
            self._end(error)

    async def clear_caches(self) -> None:
        self._guarded(self.engine.clear_caches)

    async def load_weights(self, version: int, tensors: Iterable[tuple[str, Any]]) -> None:
        """Load weights; nothing if the engine is not made yet, since it takes the current weights then."""
        if self._engine is not None:
            self._guarded(self._engine.load_weights, version, tensors)

    async def sleep(self) -> None:
        if self._engine is not None:
            self._guarded(self._engine.sleep)

    async def wake(self, cache: bool) -> None:
        """Wake the engine, or make it if it is not made yet: not without its cache, as learners may have the memory."""
        if self._engine is not None:
            self._guarded(self._engine.wake, cache)
        elif cache:
            self._start()

    async def version_and_checksum(self) -> tuple[int, str]:
        return self.engine.version, self._guarded(self.engine.checksum)

    def _guarded(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call a method of the engine; raise its EngineError.

        End the process if the engine is dead or hangs, or if the call raises anything else (torch and vLLM raise many
        kinds of errors): half of the weights may be old then, or memory may be lost.
        """
        try:
            with self._watchdog:
                return method(*args)
        except EngineDead as error:
            self._end(error)
        except EngineError:
            raise
        except Exception as error:
            self._end(error)

    def _end(self, error: Exception) -> NoReturn:
        """Log the error and end this process: Ray restarts it, and callers repeat their calls."""
        try:
            with open(self._log_path, "a") as log:
                print("the engine broke; its process ends and is restarted:", file=log)
                traceback.print_exception(error, file=log)
        finally:  # also if the disk is full
            os._exit(1)

    @ray.method(concurrency_group=HEALTH)
    async def ping(self) -> bool:
        """Answer from a thread of its own, even while the engine works."""
        return True

    async def process_id(self) -> str:
        """Node and process, which change with a restart; "" while there is no engine."""
        return f"{ray.get_runtime_context().get_node_id()}/{os.getpid()}" if self._engine is not None else ""

    async def stats(self) -> EngineStats:
        """Counters since the start, with this process's memory [GiB]."""
        counted = self._guarded(self._engine.stats) if self._engine is not None else EngineStats()
        return replace(counted, own_memory_gb=peak_memory_gb() + counted.own_memory_gb)
