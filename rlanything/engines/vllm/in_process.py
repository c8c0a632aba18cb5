"""vLLM's LLMEngine in this process, stepped from the asyncio loop: deterministic, and up in seconds."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

import torch
import vllm
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine

from rlanything.engines.base import Completion, EngineDead, EngineError
from rlanything.engines.pump import Pump
from rlanything.engines.vllm.engine import VLLMEngine
from rlanything.weights.transfer import IncomingWeights


class InProcessVLLM(VLLMEngine):
    """See `VLLMEngine`. torch.distributed is left initialised by vLLM (gloo, world size 1 on a CPU)."""

    _engine: LLMEngine | None = None
    # Where a second vLLM starts in a process, it clears the graphs of the first one that are in pieces, and that one
    # would return what it captures anew instead of computing it (CUDAGraphWrapper.clear_all_graphs of vLLM 0.32).
    _graphs = MappingProxyType({"compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}})

    def _start(self, arguments: EngineArgs) -> VllmConfig:
        self._futures: dict[str, asyncio.Future[list[Completion]]] = {}
        self._pump = Pump(self._step, self._fail, self._watchdog)
        self._engine = LLMEngine.from_engine_args(arguments)
        return self._engine.vllm_config

    async def _serve(
        self, session: str, request_id: str, prompt_ids: list[int], params: vllm.SamplingParams
    ) -> list[Completion]:
        return await self._admission.serve(
            session, len(prompt_ids), params.n, lambda: self._submit(request_id, prompt_ids, params)
        )

    def _submit(
        self, request_id: str, prompt_ids: list[int], params: vllm.SamplingParams
    ) -> asyncio.Future[list[Completion]]:
        future: asyncio.Future[list[Completion]] = asyncio.get_running_loop().create_future()
        self._live().add_request(request_id, {"prompt_token_ids": prompt_ids}, params)
        self._futures[request_id] = future
        self._pump.start()
        return future

    def _updates(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterable[dict[str, Any]]:
        if self._one_worker and not isinstance(tensors, IncomingWeights):
            return [{"weights": tensors}]
        return super()._updates(tensors)

    def _give_back(self) -> None:
        self._live().sleep(level=1)

    def _take_back(self, tags: list[str]) -> None:
        self._live().wake_up(tags)

    def close(self) -> None:
        """Fail what is under way, stop vLLM and its worker processes, close the log."""
        self._fail(EngineError("the engine was closed"))
        if self._engine is not None:
            # Not the engine core's own shutdown: it destroys torch.distributed, which learners and other engines use.
            client: Any = self._engine.engine_core
            client._finalizer.detach()
            self._engine.model_executor.shutdown()
            self._engine = None
            gc.unfreeze()  # vLLM froze all objects when it started
            gc.collect()
        self._close_log()

    def _live(self) -> LLMEngine:
        if self._engine is None:
            raise EngineError("the engine was closed; start a new one")
        return self._engine

    def _under_way(self) -> int:
        self._drop_cancelled()
        return len(self._futures)

    def _rpc(self, method: str, *args: Any) -> list[Any]:
        return self._live().collective_rpc(method, args=args)

    def _reset_caches(self) -> None:
        engine = self._live()
        if not engine.reset_prefix_cache():
            raise EngineDead("vLLM kept its prefix cache, which may hold keys of old weights")
        engine.reset_mm_cache()
        engine.reset_encoder_cache()

    def _fail(self, error: Exception) -> None:
        self._error = error
        for future in self._futures.values():
            if not future.done():
                future.set_exception(EngineDead(f"the engine died: {error!r}"))
        self._futures.clear()
        self._admission.fail(EngineDead(f"the engine died: {error!r}"))

    def _drop_cancelled(self) -> None:
        if cancelled := [key for key, future in self._futures.items() if future.done()]:
            self._live().abort_request(cancelled)
            for key in cancelled:
                del self._futures[key]

    def _step(self) -> bool:
        self._drop_cancelled()
        if not self._futures:
            return False
        started = time.perf_counter()
        outputs = self._live().step()
        self._stats.steps += 1
        self._stats.busy_s += time.perf_counter() - started
        self._admission.step()
        for output in outputs:
            self._futures.pop(output.request_id).set_result(self._completions(output))
        return bool(self._futures)
