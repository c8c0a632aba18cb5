"""vLLM's AsyncLLM, for replicas. Scheduler and model run in a process of their own, in parallel with this one.

AsyncLLM lives on an event loop in a thread of its own, so that the synchronous methods of `Engine` can wait for it even
if an event loop calls them. Batches depend on timing; a run that must repeat itself bit for bit takes `in_process`.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from dataclasses import replace
from typing import Any, TypeVar

from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.metrics.loggers import StatLoggerBase

from rlanything.engines.base import Completion, EngineDead, EngineError, EngineStats
from rlanything.engines.local import Request
from rlanything.engines.vllm.engine import VLLMEngine
from rlanything.engines.vllm.workers import OneWorker, SeveralWorkers

POLL_S = 1.0  # between two checks that vLLM is alive

T = TypeVar("T")


class AsyncVLLM(VLLMEngine):
    """The AsyncLLM of vLLM and its event loop. `stats().busy_s` is the time with requests under way in vLLM."""

    def _start(self, arguments: EngineArgs) -> VllmConfig:
        self._callers = 0  # callers that wait for completions
        self._requests = 0  # requests in vLLM, including those that callers have just cancelled
        self._idle = asyncio.Event()  # set while `_requests` is 0
        self._idle.set()
        self._busy_since = 0.0
        self._loop = asyncio.new_event_loop()
        # vLLM's process ends with the thread that started it, so this thread runs until the engine is closed.
        self._thread = threading.Thread(target=self._loop.run_forever, name="AsyncLLM", daemon=True)
        self._thread.start()
        try:
            config = arguments.create_engine_config()
            self._llm = self._wait(self._make(config))
        except BaseException:
            self._end_loop()
            raise
        return config

    async def _make(self, config: VllmConfig) -> AsyncLLM:
        """Make the AsyncLLM. This runs on the loop, because AsyncLLM listens on the loop that made it."""
        steps = [lambda vllm_config, index: _Steps(self._stepped)]
        executor = OneWorker if self._one_worker else SeveralWorkers
        llm = AsyncLLM(config, executor, log_stats=False, log_requests=False, stat_loggers=[*steps])
        assert llm.logger_manager is not None
        del llm.logger_manager.stat_loggers[len(steps) :]  # Prometheus, which nobody reads, costs time at every step
        return llm

    async def _admitted(self, request: Request) -> list[Completion]:
        self._callers += 1
        try:
            work = super()._admitted(request)
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        finally:
            self._callers -= 1

    async def _compute(self, request: Request) -> list[Completion]:
        llm = self._live()
        self._begin()
        try:
            # Pictures are opened in a thread: they would keep all other requests waiting.
            prompt = await asyncio.to_thread(self._prompt, request) if request.images else self._prompt(request)
            async for output in llm.generate(prompt, self._params(request), str(request.number)):
                last = output  # FINAL_ONLY: there is one output, at the end
            return self._completions(last)
        except (EngineDead, EngineDeadError, EngineGenerateError) as error:
            self._error = self._error or error
            raise EngineDead(f"the engine died: {error!r}") from error
        except asyncio.CancelledError:
            if self._error is None:  # the caller cancelled it
                raise
            raise EngineDead(f"the engine died: {self._error!r}") from self._error
        finally:
            self._end()

    def _begin(self) -> None:
        if not self._requests:
            self._busy_since = time.perf_counter()
            self._watchdog.beat()
            self._idle.clear()
        self._requests += 1

    def _end(self) -> None:
        self._requests -= 1
        if not self._requests:
            self._stats.busy_s += time.perf_counter() - self._busy_since
            self._watchdog.rest()
            self._idle.set()

    def _stepped(self) -> None:
        self._stats.steps += 1
        self._admission.step()
        if self._requests:
            self._watchdog.beat()

    def stats(self) -> EngineStats:
        """Counters since the start. With tensor parallelism the memory leaves out the process that schedules."""
        busy_s = self._stats.busy_s + (time.perf_counter() - self._busy_since if self._requests else 0.0)
        return replace(self._stats, busy_s=busy_s, own_memory_gb=sum(self._rpc("rlanything_memory_gb")))

    def close(self) -> None:
        """Fail unanswered requests, stop vLLM and its processes, close the log."""
        self._error = EngineError("the engine was closed")
        if self._llm is not None:
            self._loop.call_soon_threadsafe(self._admission.fail, EngineDead("the engine was closed"))
            self._llm.shutdown()
            self._llm = None
            self._end_loop()
        self._close_log()

    def _end_loop(self) -> None:
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _under_way(self) -> int:
        if not self._callers:
            self._wait(self._idle.wait())
        return self._callers

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        return self._wait(getattr(self._live(), method)(*args, **options))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while not wait([future], timeout=POLL_S).done:
            if self._llm is not None and self._llm.errored:  # vLLM leaves earlier requests unanswered
                future.cancel()
                raise EngineDead("vLLM's process ended; why is in the engine's log")
        try:
            return future.result()
        except EngineDeadError as error:
            raise EngineDead(f"the engine died: {error!r}") from error


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class _Steps(StatLoggerBase):
    """Calls a function after every step of vLLM, which reports each step to its loggers."""

    def __init__(self, stepped: Callable[[], None]) -> None:
        self._stepped = stepped

    def record(self, *_: Any, **__: Any) -> None:
        self._stepped()

    def log_engine_initialized(self) -> None:
        pass
