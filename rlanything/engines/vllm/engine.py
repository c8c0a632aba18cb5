"""The common part of both vLLM engines: arguments, requests, completions, new weights."""

import contextlib
import logging
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import vllm
from PIL import Image as Pictures
from transformers import AutoConfig
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind

from rlanything.config.schema import EngineConfig, ModelConfig
from rlanything.engines.admission import Admission
from rlanything.engines.base import Completion, EngineDead, EngineError
from rlanything.engines.local import GIB, LocalEngine, Request, mix, token_ids
from rlanything.engines.vllm import LOG_FORMAT, LOGGER, workers
from rlanything.weights.images import BIAS, reads_images, unwritten_ids
from rlanything.weights.precision import torch_dtype
from rlanything.weights.transfer import IncomingWeights, Meeting
from rlanything.weights.transfer.pieces import packed

WEIGHTS, KV_CACHE = "weights", "kv_cache"  # vLLM's names in sleep mode
CPU_BLOCK_SIZE = 32  # [tokens] vLLM's default on a CPU, 128, would compute up to 127 cached tokens again each turn
CPU_STEP_TOKENS = 4096  # [tokens] of one forward pass
GPU_STEP_TOKENS = 8192  # [tokens] vLLM's default, 2048, leaves a large GPU idle


class VLLMEngine(LocalEngine):
    """vLLM's log, and all that it prints while it starts, go to `log_path`.

    With top_p or top_k, logprobs are those of the truncated distribution.
    """

    _llm: Any = None  # vLLM's engine while it runs
    _graphs: Mapping[str, Any] = MappingProxyType({})  # vLLM's arguments for CUDA graphs that differ from its defaults

    def __init__(
        self, model: ModelConfig, config: EngineConfig, seed: int, log_path: Path, sleeps: bool = False
    ) -> None:
        super().__init__(config, torch_dtype(config.dtype, not current_platform.is_cpu()), seed, log_path)
        self._sleeps = sleeps and not current_platform.is_cpu()  # vLLM cannot sleep on a CPU
        self._asleep: list[str] = []  # the tags that vLLM has moved out of the accelerator's memory
        self._one_worker = config.tensor_parallel_size == 1
        self._lengths: dict[str, int] = {}  # of prompts with images under way, by the request's number
        self._checksum: str | None = None
        self._meeting: Meeting | None = None
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log = logging.FileHandler(log_path)
        self._log.setFormatter(LOG_FORMAT)
        LOGGER.addHandler(self._log)
        threads, set_num_threads = torch.get_num_threads(), torch.set_num_threads
        try:
            with _terminal_to(log_path):
                vllm_config = self._start(self._arguments(model, config, seed))
        except Exception as error:
            self._close_log()
            raise EngineError(f"vLLM could not start {model.path} ({error!r}): see {log_path}") from error
        finally:
            torch.set_num_threads = set_num_threads  # vLLM's CPU worker replaces it by a no-op
            torch.set_num_threads(threads)  # vLLM's GPU worker sets 1 for the whole process
        cache, loaded = vllm_config.cache_config, vllm_config.model_config
        self._admission = Admission(int(cache.num_gpu_blocks or 0) * cache.block_size)
        self._stop_ids = token_ids(loaded.hf_text_config.eos_token_id)
        self._stop_ids |= token_ids(loaded.try_get_generation_config().get("eos_token_id"))
        if loaded.runner_type != "generate":
            self.close()
            raise EngineError(f"vLLM takes {model.path} for a {loaded.runner_type} model; use a model for generation")

    def _arguments(self, model: ModelConfig, config: EngineConfig, seed: int) -> EngineArgs:
        specific: dict[str, Any] = (
            {
                "enforce_eager": True,
                "block_size": CPU_BLOCK_SIZE,
                "kv_cache_memory_bytes": int(config.kv_cache_gb * GIB),
                "enable_chunked_prefill": False,  # vLLM 0.32 dies on a CPU if it splits a prompt of a seeded request
                "max_num_batched_tokens": max(config.max_model_len, CPU_STEP_TOKENS),
            }
            if current_platform.is_cpu()
            else {
                "enforce_eager": config.enforce_eager,
                "gpu_memory_utilization": config.gpu_memory_utilization,
                "max_num_batched_tokens": GPU_STEP_TOKENS,
                **self._graphs,
            }
        )
        loaded = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
        self._bias = dict.fromkeys(unwritten_ids(loaded), BIAS) or None
        sees = reads_images(loaded)
        if sees:
            specific["limit_mm_per_prompt"] = {"image": config.max_images, "video": 0}
            specific["skip_mm_profiling"] = current_platform.is_cpu()  # the KV cache has a fixed size there
        return EngineArgs(
            model=model.path,
            dtype=self.dtype,  # type: ignore[arg-type]  # vLLM takes torch's types, too
            trust_remote_code=model.trust_remote_code,
            seed=seed,
            max_model_len=config.max_model_len,
            max_num_seqs=config.max_num_seqs,
            tensor_parallel_size=config.tensor_parallel_size,
            enable_prefix_caching=True,
            # Inside a Ray actor vLLM would ask Ray for its workers' accelerators; our plan assigns them instead.
            distributed_executor_backend=None if self._one_worker else "mp",
            # Only on request: its allocator serves one engine a process, and a process may have three.
            enable_sleep_mode=self._sleeps,
            logprobs_mode="processed_logprobs",
            weight_transfer_config=workers.CONFIG,
            worker_extension_cls=f"{workers.__name__}.{workers.WorkerExtension.__name__}",
            disable_log_stats=True,
            use_tqdm_on_load=False,
            skip_tokenizer_init=not sees,  # vLLM's processor of images needs the tokenizer
            **specific,
        )

    def _prompt(self, request: Request) -> Any:
        """A request's prompt as vLLM takes it."""
        if not request.images:
            return {"prompt_token_ids": request.prompt}
        self._lengths[str(request.number)] = len(request.prompt)
        return _with_images(request)

    def _params(self, request: Request) -> vllm.SamplingParams:
        sampling = request.sampling
        return vllm.SamplingParams(
            n=request.n,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=request.max_tokens,
            stop_token_ids=sorted(self._stop_ids.union(sampling.stop_token_ids)),
            # vLLM gives sample i the seed + i. Mixing keeps callers' neighbouring seeds from colliding.
            seed=int(mix(np.array([request.seed], dtype=np.uint64))[0] >> np.uint64(2)),
            logit_bias=self._bias,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _completions(self, output: Any) -> list[Completion]:
        """The completions of a finished request, counted in `stats`. Raises EngineDead if vLLM aborted it, or gave an
        image another number of tokens than the prompt has for it."""
        read, expected = len(output.prompt_token_ids or []), self._lengths.pop(output.request_id, None)
        if expected not in (None, read):
            raise EngineDead(
                f"vLLM read a prompt with images as {read} tokens, expected {expected}: its image processor differs "
                "from the model folder's preprocessor_config.json"
            )
        if others := {s.finish_reason for s in output.outputs} - {"stop", "length"}:
            raise EngineDead(f"vLLM gave up a request: {others}")
        completions = [
            Completion(
                list(sample.token_ids),
                [entry[token].logprob for entry, token in zip(sample.logprobs, sample.token_ids, strict=True)],
                sample.finish_reason,
            )
            for sample in sorted(output.outputs, key=lambda sample: sample.index)
        ]
        self._stats.prompt_tokens += read
        self._stats.cached_prompt_tokens += output.num_cached_tokens or 0
        self._stats.generated_tokens += sum(len(c.token_ids) for c in completions)
        return completions

    def _load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Bring the weights to all workers. Raises EngineDead if workers differ."""
        if isinstance(tensors, IncomingWeights) and tensors.meeting != self._meeting:
            self._rpc("init_weight_transfer_engine", workers.rendezvous(tensors.meeting, tensors.first_worker))
            self._meeting = tensors.meeting
        self._rpc("start_weight_update")
        for update in self._updates(tensors):
            self._rpc("update_weights", update)
        self._rpc("finish_weight_update")
        found: list[str] = sorted(set(self._rpc("rlanything_checksum")))
        if len(found) != 1:
            raise EngineDead(f"load_weights: vLLM's workers received different weights: {found}")
        self._checksum = found[0]

    def _updates(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterable[dict[str, Any]]:
        """vLLM's `update_info` dicts (`workers.Update`) that bring the tensors to the workers."""
        if isinstance(tensors, IncomingWeights):
            return [{"expected": tensors.expected}]
        return ({"expected": piece.expected, "path": piece.handle()} for piece in packed(tensors))

    def checksum(self) -> str:
        """The checksum of the workers' weights; see `WeightReceiver`."""
        if self._checksum is None:
            self._checksum = self._rpc("rlanything_checksum")[0]
        return self._checksum

    def sleep(self) -> None:
        """Move weights to the host and free the KV cache. Does nothing if the engine was not made to sleep."""
        if self._sleeps and not self._asleep:
            self._call("sleep", level=1)
            self._asleep = [WEIGHTS, KV_CACHE]

    def wake(self, cache: bool = True) -> None:
        """Undo `sleep`, for the weights alone if `cache` is false."""
        if tags := [tag for tag in self._asleep if cache or tag == WEIGHTS]:  # vLLM must wake no part twice
            self._call("wake_up", tags)
            self._asleep = [tag for tag in self._asleep if tag not in tags]

    def _reset_caches(self) -> None:
        if not self._call("reset_prefix_cache"):
            raise EngineDead("vLLM kept its prefix cache, which may hold keys of old weights")
        self._lengths.clear()  # what cancelled requests have left
        self._call("reset_mm_cache")
        self._call("reset_encoder_cache")

    def _rpc(self, method: str, *args: Any) -> list[Any]:
        """Call a method on every worker; returns one result a worker."""
        results: list[Any] = self._call("collective_rpc", method, args=args)
        return results

    def _live(self) -> Any:
        if self._llm is None:
            raise EngineError("the engine was closed; start a new one")
        return self._llm

    def _close_log(self) -> None:
        LOGGER.removeHandler(self._log)
        self._log.close()

    @abstractmethod
    def _start(self, arguments: EngineArgs) -> VllmConfig:
        """Start vLLM. Returns its configuration, with the number of KV-cache blocks filled in."""

    @abstractmethod
    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of vLLM's engine, and wait for its result."""


def _with_images(request: Request) -> Any:
    """A prompt with images as vLLM takes it. vLLM itself expands each image's placeholder, which stands there once."""
    ids, end = list[int](), 0
    for image in request.images:
        ids += request.prompt[end : image.start + 1]
        end = image.start + image.num_token
    pictures = [Pictures.open(image.path).convert("RGB") for image in request.images]
    return {
        "prompt_token_ids": ids + request.prompt[end:],
        "multi_modal_data": {"image": pictures},
        "multi_modal_uuids": {"image": [image.digest for image in request.images]},  # vLLM's caches know it by these
    }


@contextlib.contextmanager
def _terminal_to(path: Path) -> Iterator[None]:
    """Send stdout and stderr to a file. File descriptors are redirected too, for native code and children."""
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
