"""One engine in a process of its own: a Ray actor that is there again, with the current weights, where it died.

A replica that loses the sender of its weights has half of them: it ends itself, and finds the others in the store.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import ray

from rlanything.cluster.board import board, was_restarted
from rlanything.config.schema import EngineConfig, ModelConfig
from rlanything.engines.base import (
    Completion,
    Engine,
    EngineDead,
    EngineError,
    EngineStats,
    SamplingParams,
    peak_memory_gb,
)
from rlanything.launch.addresses import use_interface
from rlanything.processes.watchdog import Watchdog

HEALTH = "health"  # the group of calls that have a thread of their own


class EngineReplica:
    """A Ray actor: one engine. Where Ray started it anew, it takes the current weights before it serves anyone.

    Started anew while the role's engines sleep, it has no engine until they wake: the learners have the memory.
    """

    def __init__(
        self,
        role: str,
        model: ModelConfig,
        config: EngineConfig,
        seed: int,
        log_path: Path,
        sleeps: bool,
        start_timeout_s: float,
    ) -> None:
        from rlanything.engines import make_engine

        use_interface(ray.util.get_node_ip_address())
        self.restarted = was_restarted(f"engine/{role}_restarts")
        self._role, self._log_path = role, log_path
        self._make = partial(make_engine, model, config, seed, log_path, alone=True, sleeps=sleeps)
        self._watchdog = Watchdog(config.step_timeout_s, log_path)
        self._start_watchdog = Watchdog(start_timeout_s, log_path, "cluster.restart_timeout_s")
        self._engine: Engine | None = None
        if not self.restarted or not ray.get(board().sleeps.remote(role)):
            self._start()

    def _start(self) -> None:
        """Where this fails in a process that was started anew, the next one may do better: the memory of the one before
        may not have been free yet. Ray itself would give up."""
        try:
            with self._start_watchdog:
                self._engine = self._make()
                if self.restarted:
                    self._take_current_weights(self._engine)
        except Exception as error:
            if self.restarted:
                self._end(error)
            raise

    def _take_current_weights(self, engine: Engine) -> None:
        current = ray.get(board().current.remote(self._role))
        if current is None:  # those of the model's files
            return
        version, weights = current
        engine.load_weights(version, weights)
        if (found := engine.checksum()) != weights.checksum:
            raise EngineError(
                f"a replica of the {self._role} engine that was started anew holds other weights than the learner's of "
                f"version {version}: {found} != {weights.checksum}"
            )

    @property
    def engine(self) -> Engine:
        """Raises EngineError where it is not started yet."""
        if self._engine is None:
            raise EngineError(f"the {self._role} engine was started anew while it slept; wake it first")
        return self._engine

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, n: int, images: tuple[str, ...]
    ) -> list[Completion]:
        """See `Engine.generate`."""
        try:
            return await self.engine.generate(prompt_ids, sampling, n, images)
        except EngineDead as error:
            self._end(error)

    async def call(self, method: str, *args: Any) -> Any:
        """What another method of the engine returns."""
        return self._guarded(getattr(self.engine, method), *args)

    async def load_weights(self, version: int, tensors: Iterable[tuple[str, Any]]) -> None:
        """See `Engine.load_weights`; nothing where it is not started yet: it takes the current ones then."""
        if self._engine is not None:
            self._guarded(self._engine.load_weights, version, tensors)

    async def sleep(self) -> None:
        """See `Engine.sleep`."""
        if self._engine is not None:
            self._guarded(self._engine.sleep)

    async def wake(self, cache: bool) -> None:
        """See `Engine.wake`. Without its cache an engine is not started: learners may have the memory."""
        if self._engine is not None:
            self._guarded(self._engine.wake, cache)
        elif cache:
            self._start()

    async def holds(self) -> tuple[int, str]:
        """Version and checksum of its weights."""
        return self.engine.version, self._guarded(self.engine.checksum)

    def _guarded(self, method: Callable[..., Any], *args: Any) -> Any:
        """What it returns, or the EngineError that it raises. This process ends where the engine is dead, hangs or
        raises anything else, of which torch and vLLM have several kinds: half of the weights may be old, or of the
        memory gone."""
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
        """Ray starts another process, and whoever waits for this one asks again."""
        try:
            with open(self._log_path, "a") as log:
                print("the engine broke, and its process ends, to be started anew:", file=log)
                traceback.print_exception(error, file=log)
        finally:  # also where the disk is full
            os._exit(1)

    @ray.method(concurrency_group=HEALTH)
    async def is_there(self) -> bool:
        """Answered by a thread of its own, also while the engine works."""
        return True

    async def process(self) -> str:
        """Which process this is: another once it was started anew. Empty while it has no engine."""
        return f"{ray.get_runtime_context().get_node_id()}/{os.getpid()}" if self._engine is not None else ""

    async def stats(self) -> EngineStats:
        """Counters since the start, with this process's memory."""
        counted = self._guarded(self._engine.stats) if self._engine is not None else EngineStats()
        return replace(counted, own_memory_gb=peak_memory_gb() + counted.own_memory_gb)
