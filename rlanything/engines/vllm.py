"""The vLLM engine: in this process, stepped from the asyncio loop; the same class on a CPU and on GPUs.

Importing this module sets VLLM_ENABLE_V1_MULTIPROCESSING=0 (no engine process: starts in
seconds and steps deterministically), VLLM_CPU_OMP_THREADS_BIND=nobind (learners share these threads),
VLLM_CONFIGURE_LOGGING=0 (the engine writes its own log file) and VLLM_NO_USAGE_STATS=1. vLLM reads them on import.
Left out: images.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}

_LOGGER = logging.getLogger("vllm")
_LOGGER.addHandler(logging.NullHandler())
_LOGGER.setLevel(logging.INFO)
_LOGGER.propagate = False

import vllm  # noqa: E402
from tqdm import tqdm  # noqa: E402
from vllm.distributed.device_communicators import shm_broadcast  # noqa: E402
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402

if current_platform.is_cpu():
    # Inductor would spend 18 s in a C++ compiler on a logprob's rank. Before vLLM's sampler is imported.
    current_platform.simple_compile_backend = "eager"

from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.model_executor.model_loader import get_model_loader  # noqa: E402
from vllm.sampling_params import RequestOutputKind  # noqa: E402
from vllm.v1.engine.llm_engine import LLMEngine  # noqa: E402

from rlanything.broadcast import IncomingWeights  # noqa: E402
from rlanything.checksum import Digest, checksum  # noqa: E402
from rlanything.config import EngineConfig  # noqa: E402
from rlanything.engines import unnamed_memory  # noqa: E402
from rlanything.engines.admission import Admission  # noqa: E402
from rlanything.engines.base import Completion, EngineDead, EngineError, EngineStats, SamplingParams  # noqa: E402
from rlanything.engines.pump import Pump  # noqa: E402
from rlanything.engines.request import response_limit  # noqa: E402
from rlanything.engines.sampling import mix  # noqa: E402
from rlanything.engines.watchdog import Watchdog  # noqa: E402
from rlanything.lora import with_base  # noqa: E402
from rlanything.precision import torch_dtype  # noqa: E402

# No names in /dev/shm, which would outlive a process that is killed. vLLM's workers import this before they make any.
shm_broadcast.shared_memory = unnamed_memory
# Nor those that its own all-reduce makes, on CPUs that have AVX-512, outside of Python: gloo serves as well.
CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False  # type: ignore[method-assign]
tqdm.set_lock(threading.RLock())  # its default lock is a named semaphore in them: it serves bars of several processes

GIB = 2**30
CPU_BLOCK_SIZE = 32  # tokens; vLLM's default on a CPU, 128, would recompute up to 127 cached tokens a turn
CPU_STEP_TOKENS = 4096  # tokens of one forward pass


class WorkerExtension:
    """Methods that vLLM mixes into each of its workers.

    vLLM fuses and prepacks weights after loading, so they cannot be compared afterwards: the digest is taken in the
    worker over the tensors that it received, cast to the engine's dtype, at the moment they are loaded.
    """

    model_runner: Any
    vllm_config: Any
    rank: int  # among this engine's workers
    device: torch.device

    def rlanything_load(self, given: list[tuple[str, torch.Tensor]] | IncomingWeights) -> str:
        """Replace all weights in place, by those of the files and adapters where these are given; returns the digest of
        what was given."""
        config = self.vllm_config.model_config
        digest = Digest(config.dtype)

        def seen() -> Iterator[tuple[str, torch.Tensor]]:
            tensors = given.tensors(self.rank, self.device) if isinstance(given, IncomingWeights) else given
            for name, tensor in tensors:
                digest.add(name, tensor)
                yield name, tensor

        weights, _ = with_base(seen(), self.rlanything_files)
        self.model_runner.reload_weights(weights_iterator=iter(weights))
        if config.hf_text_config.tie_word_embeddings:
            # The head has no weights of its own to load, so vLLM 0.32 leaves its prepacked copy (CPU) stale.
            head = self.model_runner.get_model().lm_head
            head.quant_method.process_weights_after_loading(head)
        return digest.hexdigest()

    def rlanything_initial_checksum(self) -> str:
        """Digest of the weights that the engine started with, read once more from the model's files."""
        return checksum(self.rlanything_files(), self.vllm_config.model_config.dtype)

    def rlanything_files(self) -> Iterable[tuple[str, torch.Tensor]]:
        """(Hugging Face name, tensor) of every weight in the model's files."""
        loader: Any = get_model_loader(self.vllm_config.load_config)
        weights: Iterable[tuple[str, torch.Tensor]] = loader.get_all_weights(
            self.vllm_config.model_config, self.model_runner.get_model()
        )
        return weights


class VLLMEngine:
    """Implements `engines.base.Engine`. Its log, and all that it prints while it starts, goes to `log_path`.

    Requests without a seed draw one from `seed` in the order of submission. With top_p or top_k, logprobs are those
    of the truncated distribution. torch.distributed is left initialised by vLLM (gloo, world size 1 on a CPU).
    """

    def __init__(
        self,
        model_path: str | Path,
        config: EngineConfig,
        log_path: Path,
        trust_remote_code: bool = False,
        seed: int = 0,
        sleeps: bool = False,
    ) -> None:
        self._sleeps = sleeps and not current_platform.is_cpu()  # a CPU's cannot
        self.max_model_len = config.max_model_len
        self.version = 0
        self._on_cpu = current_platform.is_cpu()
        self.dtype = torch_dtype(config.dtype, not self._on_cpu)
        self._seeds = np.random.default_rng(seed)
        self._stats = EngineStats()
        self._error: Exception | None = None
        self._futures: dict[str, asyncio.Future[list[Completion]]] = {}
        self._submitted = 0
        self._checksum: str | None = None
        self._pump = Pump(self._step, self._fail, Watchdog(config.step_timeout_s, log_path))
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log = logging.FileHandler(log_path)
        self._log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        _LOGGER.addHandler(self._log)
        specific: dict[str, Any] = {"dtype": self.dtype}
        specific |= (
            {
                "enforce_eager": True,
                "block_size": CPU_BLOCK_SIZE,
                "kv_cache_memory_bytes": int(config.kv_cache_gb * GIB),
                "enable_chunked_prefill": False,  # vLLM 0.32 dies on a CPU where it splits a prompt of a seeded request
                "max_num_batched_tokens": max(config.max_model_len, CPU_STEP_TOKENS),
            }
            if self._on_cpu
            else {"enforce_eager": config.enforce_eager, "gpu_memory_utilization": config.gpu_memory_utilization}
        )
        arguments = EngineArgs(
            model=str(model_path),
            skip_tokenizer_init=True,
            trust_remote_code=trust_remote_code,
            seed=seed,
            max_model_len=config.max_model_len,
            max_num_seqs=config.max_num_seqs,
            tensor_parallel_size=config.tensor_parallel_size,
            enable_prefix_caching=True,
            # Inside a Ray actor vLLM would ask Ray for its workers' accelerators, which our slots share out.
            distributed_executor_backend="mp" if config.tensor_parallel_size > 1 else None,
            # Its allocator serves one engine a process, and a process may have three.
            enable_sleep_mode=self._sleeps,
            logprobs_mode="processed_logprobs",
            worker_extension_cls=f"{__name__}.{WorkerExtension.__name__}",
            disable_log_stats=True,
            use_tqdm_on_load=False,
            **specific,
        )
        set_num_threads = torch.set_num_threads
        try:
            with _terminal_to(log_path):
                self._engine: LLMEngine | None = LLMEngine.from_engine_args(arguments)
        except Exception as error:
            raise EngineError(f"vLLM could not start {model_path} ({error!r}): see {log_path}") from error
        finally:
            torch.set_num_threads = set_num_threads  # vLLM's CPU worker replaces it by a no-op
        cache = self._engine.vllm_config.cache_config
        self._admission = Admission(int(cache.num_gpu_blocks or 0) * cache.block_size)
        model = self._engine.model_config
        self._stop_ids = _ids(model.hf_text_config.eos_token_id)
        self._stop_ids |= _ids(model.try_get_generation_config().get("eos_token_id"))

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, n: int = 1, images: tuple[str, ...] = ()
    ) -> list[Completion]:
        """See `Engine.generate`."""
        if self._error is not None or self._engine is None:
            raise EngineDead(f"the engine is dead ({self._error!r}); start a new one") from self._error
        max_tokens = response_limit(prompt_ids, sampling, n, images, self.max_model_len)
        seed = sampling.seed if sampling.seed is not None else int(self._seeds.integers(2**63))
        params = vllm.SamplingParams(
            n=n,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=max_tokens,
            stop_token_ids=sorted(self._stop_ids.union(sampling.stop_token_ids)),
            # vLLM gives sample i the seed + i: mixed, so that neighbouring seeds of callers do not collide.
            seed=int(mix(np.array([seed], dtype=np.uint64))[0] >> np.uint64(2)),
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        request_id = str(self._submitted)
        self._submitted += 1
        return await self._admission.serve(
            sampling.session, len(prompt_ids), n, lambda: self._submit(request_id, prompt_ids, params)
        )

    def _submit(
        self, request_id: str, prompt_ids: list[int], params: vllm.SamplingParams
    ) -> asyncio.Future[list[Completion]]:
        future: asyncio.Future[list[Completion]] = asyncio.get_running_loop().create_future()
        self._live().add_request(request_id, {"prompt_token_ids": prompt_ids}, params)
        self._futures[request_id] = future
        self._pump.start()
        return future

    def load_weights(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `Engine.load_weights`. Afterwards the prefix, multimodal and encoder caches are empty."""
        self._drop_cancelled()
        if self._futures:
            raise EngineError(f"load_weights: {len(self._futures)} requests are under way; wait for them first")
        engine = self._live()
        given = tensors if isinstance(tensors, IncomingWeights) else list(tensors)
        digests = set(engine.collective_rpc("rlanything_load", args=(given,)))
        if len(digests) != 1:
            raise EngineError(f"load_weights: vLLM's workers received different weights: {sorted(digests)}")
        if not engine.reset_prefix_cache():
            raise EngineError("load_weights: vLLM kept its prefix cache, which holds keys of the old weights")
        engine.reset_mm_cache()
        engine.reset_encoder_cache()
        self._checksum = digests.pop()
        self._admission.clear()
        self.version = version

    def checksum(self) -> str:
        """See `rlanything.checksum` and `WorkerExtension` for what is compared."""
        if self._checksum is None:
            self._checksum = self._live().collective_rpc("rlanything_initial_checksum")[0]
        return self._checksum

    def sleep(self) -> None:
        """Move weights to the host and free the KV cache; nothing where it was not made to sleep."""
        if self._sleeps:
            self._live().sleep(level=1)

    def wake(self) -> None:
        """Undo `sleep`."""
        if self._sleeps:
            self._live().wake_up()

    def stats(self) -> EngineStats:
        """Counters since the start. The prompt of an n > 1 request counts once."""
        return self._stats

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
        _LOGGER.removeHandler(self._log)
        self._log.close()

    def _live(self) -> LLMEngine:
        if self._engine is None:
            raise EngineError("the engine was closed; start a new one")
        return self._engine

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
            self._finish(output)
        return bool(self._futures)

    def _finish(self, output: Any) -> None:
        completions = [
            Completion(
                list(sample.token_ids),
                [entry[token].logprob for entry, token in zip(sample.logprobs, sample.token_ids, strict=True)],
                "length" if sample.finish_reason == "length" else "stop",
            )
            for sample in sorted(output.outputs, key=lambda sample: sample.index)
        ]
        self._stats.prompt_tokens += len(output.prompt_token_ids or [])
        self._stats.cached_prompt_tokens += output.num_cached_tokens or 0
        self._stats.generated_tokens += sum(len(c.token_ids) for c in completions)
        self._futures.pop(output.request_id).set_result(completions)


def _ids(value: int | list[int] | None) -> set[int]:
    return set() if value is None else {value} if isinstance(value, int) else set(value)


@contextlib.contextmanager
def _terminal_to(path: Path) -> Iterator[None]:
    """Send stdout and stderr to a file, also at the level of file descriptors, which native code and children use."""
    saved = os.dup(1), os.dup(2)
    with path.open("a") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            for target, fd in zip((1, 2), saved, strict=True):
                os.dup2(fd, target)
                os.close(fd)
