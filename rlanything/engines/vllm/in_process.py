"""vLLM's LLMEngine in this process, stepped from the asyncio loop: deterministic, and up in seconds."""

import gc
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine

from rlanything.engines.base import Completion, EngineError
from rlanything.engines.local import Request, SteppedEngine
from rlanything.engines.vllm.engine import VLLMEngine
from rlanything.weights.transfer import IncomingWeights


class InProcessVLLM(VLLMEngine, SteppedEngine):
    """vLLM leaves torch.distributed initialised in this process (gloo, world size 1 on a CPU)."""

    # If a second vLLM starts in a process, it clears the piecewise graphs of the first one. The first one would then
    # capture again and return that, instead of computing (CUDAGraphWrapper.clear_all_graphs of vLLM 0.32).
    _graphs = MappingProxyType({"compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}})

    def _start(self, arguments: EngineArgs) -> VllmConfig:
        self._llm = LLMEngine.from_engine_args(arguments)
        config: VllmConfig = self._llm.vllm_config
        return config

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        return getattr(self._live(), method)(*args, **options)

    def _submit(self, request: Request) -> None:
        self._live().add_request(str(request.number), self._prompt(request), self._params(request))

    def _abort(self, numbers: list[int]) -> None:
        self._live().abort_request([str(number) for number in numbers])

    def _step(self) -> list[tuple[int, list[Completion]]]:
        return [(int(output.request_id), self._completions(output)) for output in self._live().step()]

    def _updates(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterable[dict[str, Any]]:
        if self._one_worker and not isinstance(tensors, IncomingWeights):
            return [{"weights": tensors}]
        return super()._updates(tensors)

    def close(self) -> None:
        """Fail unanswered requests, stop vLLM and its worker processes, close the log."""
        self._fail(EngineError("the engine was closed"))
        if self._llm is not None:
            # Not the engine core's own shutdown: it destroys torch.distributed, which learners and other engines use.
            self._llm.engine_core._finalizer.detach()
            self._llm.model_executor.shutdown()
            self._llm = None
            gc.unfreeze()  # vLLM froze all objects when it started
            gc.collect()
        self._close_log()
