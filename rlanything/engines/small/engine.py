"""The small engine: batched decoding of a Hugging Face causal LM with a persistent block cache, in process, on a CPU.

The model's own forward runs over packed tokens (see `attention`), so every family whose attention goes through
transformers' attention interface works. `blocks` remembers finished sequences: the next turn of an episode, or the
next judge prompt about it, prefills only what is new. Left out: sliding windows, attention sinks, images, GPUs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from rlanything.config.schema import EngineConfig
from rlanything.engines.admission import Admission
from rlanything.engines.base import Completion, EngineDead, EngineError, EngineStats, SamplingParams
from rlanything.engines.pump import Pump
from rlanything.engines.request import response_limit, token_ids
from rlanything.engines.small.attention import BLOCK_SIZE, IMPLEMENTATION, BlockCache, round_up
from rlanything.engines.small.blocks import BlockPool
from rlanything.engines.small.sampling import sample, uniform
from rlanything.engines.small.scheduler import Request, Scheduler, Sequence
from rlanything.processes.watchdog import Watchdog
from rlanything.weights.checksum import LM_HEAD, checksum
from rlanything.weights.lora import with_base
from rlanything.weights.precision import torch_dtype

GIB = 2**30


class TransformersEngine:
    """Implements `engines.base.Engine`. `log_path` is written only if a step hangs.

    `config.kv_cache_gb` sizes the cache [GiB], `config.max_num_seqs` bounds the sequences decoded together.
    Requests without a seed draw one from `seed` in the order of submission. The same submissions give the same tokens.
    """

    def __init__(
        self,
        model_path: str | Path,
        config: EngineConfig,
        log_path: Path,
        trust_remote_code: bool = False,
        seed: int = 0,
    ) -> None:
        self.dtype = torch_dtype(config.dtype, on_accelerator=False)
        self.model = AutoModelForCausalLM.from_pretrained(
            model_path, dtype=self.dtype, attn_implementation=IMPLEMENTATION, trust_remote_code=trust_remote_code
        ).eval()
        self.config = config
        self.max_model_len = config.max_model_len
        self.version = 0
        text = self.model.config.get_text_config()
        _check_supported(text, self.max_model_len)
        self.eos_ids = token_ids(text.eos_token_id) | token_ids(self.model.generation_config.eos_token_id)
        self._files: dict[str, torch.Tensor] = {}
        self._adapters: dict[str, torch.Tensor] = {}
        self._seeds = np.random.default_rng(seed)
        self._stats = EngineStats()
        self._error: Exception | None = None
        self._pump = Pump(self._step, self._fail, Watchdog(config.step_timeout_s, log_path))
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        self._cache_shape = (text.num_hidden_layers, self._num_blocks(text.num_hidden_layers * heads * dim), heads, dim)
        self._cache: BlockCache | None = BlockCache(*self._cache_shape, self.dtype)
        pool = BlockPool(self._cache_shape[1], BLOCK_SIZE)
        self._admission = Admission(pool.num_blocks * BLOCK_SIZE)
        self._scheduler = Scheduler(pool, config.max_num_seqs, self.max_model_len)

    def _num_blocks(self, values_per_token: int) -> int:
        block_bytes = 2 * values_per_token * BLOCK_SIZE * self.dtype.itemsize
        found = int(self.config.kv_cache_gb * GIB) // block_bytes
        needed = -(-self.max_model_len // BLOCK_SIZE)
        if found < needed:
            raise EngineError(
                f"engine.kv_cache_gb={self.config.kv_cache_gb} holds {found * BLOCK_SIZE} tokens, expected at least "
                f"max_model_len={self.max_model_len}: raise it to {needed * block_bytes / GIB:.3f}, or lower it"
            )
        return found

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, n: int = 1, images: tuple[str, ...] = ()
    ) -> list[Completion]:
        """See `Engine.generate`. The `n` samples share one prefill."""
        if self._error is not None:
            raise EngineDead(f"the engine died earlier: {self._error!r}; start a new one") from self._error
        max_tokens = response_limit(prompt_ids, sampling, n, images, self.max_model_len)
        if self._cache is None:
            raise EngineError("the engine sleeps: call wake() before generate()")
        seed = sampling.seed if sampling.seed is not None else int(self._seeds.integers(2**63))
        return await self._admission.serve(
            sampling.session, len(prompt_ids), n, lambda: self._submit(prompt_ids, sampling, n, seed, max_tokens)
        )

    def _submit(
        self, prompt_ids: list[int], sampling: SamplingParams, n: int, seed: int, max_tokens: int
    ) -> asyncio.Future[list[Completion]]:
        future: asyncio.Future[list[Completion]] = asyncio.get_running_loop().create_future()
        self._scheduler.submit(Request(prompt_ids, sampling, n, seed, max_tokens, future))
        self._pump.start()
        return future

    def load_weights(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `Engine.load_weights`. Raises EngineError naming weights that are missing, unknown or misshapen."""
        self._require_idle("load_weights")
        own = self._weights()
        missing = set(own)
        weights, self._adapters = with_base(tensors, self._base)
        with torch.no_grad():
            for name, tensor in weights:
                if name == LM_HEAD and name not in own:  # tied: the embedding brings it
                    continue
                if name not in own or own[name].shape != tensor.shape:
                    expected = f"shape {tuple(own[name].shape)}" if name in own else "a weight of this model"
                    raise EngineError(f"load_weights: {name!r} of shape {tuple(tensor.shape)}, expected {expected}")
                own[name].copy_(tensor)
                missing.discard(name)
        if missing:
            raise EngineError(f"load_weights: {len(missing)} weights are missing, among them {sorted(missing)[:3]}")
        self.clear_caches()
        self.version = version

    def clear_caches(self) -> None:
        """See `Engine.clear_caches`."""
        self._require_idle("clear_caches")
        self._scheduler.pool.clear()
        self._admission.clear()

    def _base(self) -> Iterable[tuple[str, torch.Tensor]]:
        """The weights before the first adapters, which are those of the files."""
        self._files = self._files or {name: weight.clone() for name, weight in self._weights().items()}
        return self._files.items()

    def checksum(self) -> str:
        """See `rlanything.weights.checksum`; taken over the live weights, or the adapters as they came."""
        return checksum((self._adapters or self._weights()).items(), self.dtype)

    def sleep(self) -> None:
        """Free the KV cache and forget its content."""
        self._require_idle("sleep")
        self._scheduler.pool.clear()
        self._cache = None

    def wake(self, cache: bool = True) -> None:
        """Allocate the KV cache again; weights never sleep."""
        if cache and self._cache is None:
            self._cache = BlockCache(*self._cache_shape, self.dtype)

    def stats(self) -> EngineStats:
        """Counters since the start."""
        self._stats.prompt_tokens = self._scheduler.prompt_tokens
        self._stats.cached_prompt_tokens = self._scheduler.cached_prompt_tokens
        return self._stats

    def close(self) -> None:
        """Fail what is under way and drop the cache."""
        self._fail(EngineError("the engine was closed"))
        self._cache = None

    def _weights(self) -> dict[str, torch.Tensor]:
        return dict(self.model.named_parameters())  # tied weights come once, under the embedding's name

    def _require_idle(self, what: str) -> None:
        self._scheduler.drop_cancelled()
        if count := len(self._scheduler.waiting) + len(self._scheduler.running):
            raise EngineError(f"{what}: {count} requests are under way; wait for them first")

    def _fail(self, error: Exception) -> None:
        self._error = error
        for request in self._scheduler.waiting + [sequence.request for sequence in self._scheduler.running]:
            if not request.future.done():
                request.future.set_exception(EngineDead(f"the engine died: {error!r}"))
        self._admission.fail(EngineDead(f"the engine died: {error!r}"))

    def _step(self) -> bool:
        """Admit what fits, run one forward pass over prefills and decodes, sample. False once nothing is left."""
        started = time.perf_counter()
        scheduler = self._scheduler
        scheduler.drop_cancelled()
        scheduler.admit()
        batch = sorted(scheduler.select(), key=lambda item: (round_up(item[1]), item[0].computed))
        if batch:
            logits_NV = self._forward(batch)
            self._sample(scheduler.advance(batch), logits_NV)
            self._stats.steps += 1
            self._stats.busy_s += time.perf_counter() - started
            self._admission.step()
        return bool(scheduler.running or scheduler.waiting)

    @torch.inference_mode()
    def _forward(self, batch: list[tuple[Sequence, int]]) -> torch.Tensor:
        """Logits [N, V] after the last new token of each sequence."""
        cache, scheduler = self._cache, self._scheduler
        assert cache is not None
        if scheduler.pool.copies:
            cache.copy_blocks(scheduler.pool.copies)
            scheduler.pool.copies.clear()
        lengths = np.array([length for _, length in batch])
        starts = np.array([sequence.computed for sequence, _ in batch])
        num_blocks = scheduler.pool.blocks_for(int((starts + lengths).max()))
        positions = cache.plan(scheduler.table[[s.row for s, _ in batch], :num_blocks], starts, lengths)
        ids = [token for s, length in batch for token in s.tokens[s.computed : s.computed + length]]
        packed = np.zeros((2, round_up(len(ids))), dtype=np.int64)
        packed[0, : len(ids)], packed[1, : len(ids)] = ids, positions
        tokens_1T, positions_1T = torch.from_numpy(packed).unsqueeze(1)
        output = self.model(
            input_ids=tokens_1T,
            position_ids=positions_1T,
            use_cache=False,
            logits_to_keep=torch.from_numpy(np.cumsum(lengths) - 1),
            block_cache=cache,
        )
        return output.logits[0]

    def _sample(self, ready: list[tuple[int, Sequence]], logits_NV: torch.Tensor) -> None:
        """Sample the next token of each ready sequence; finish those that stop."""
        if not ready:
            return
        sequences = [sequence for _, sequence in ready]
        params = [s.request.sampling for s in sequences]
        tokens, logprobs = sample(
            logits_NV[[position for position, _ in ready]],
            np.array([p.temperature for p in params]),
            np.array([p.top_p for p in params]),
            np.array([p.top_k for p in params]),
            uniform(
                np.array([s.request.seed for s in sequences], dtype=np.uint64),
                np.array([s.index for s in sequences]),
                np.array([len(s.logprobs) for s in sequences]),
            ),
        )
        self._stats.generated_tokens += len(ready)
        for sequence, token, logprob in zip(sequences, tokens, logprobs, strict=True):
            request = sequence.request
            sequence.tokens.append(token)
            sequence.logprobs.append(logprob)
            stop = token in self.eos_ids or token in request.sampling.stop_token_ids
            if stop or len(sequence.logprobs) == request.max_tokens:
                response = sequence.tokens[len(request.prompt) :]
                request.completions[sequence.index] = Completion(
                    response, sequence.logprobs, "stop" if stop else "length"
                )
                self._scheduler.release(sequence)
                if len(request.completions) == request.n and not request.future.done():
                    request.future.set_result([request.completions[i] for i in range(request.n)])


def _check_supported(text: PreTrainedConfig, max_model_len: int) -> None:
    window = getattr(text, "sliding_window", None)
    # Without kinds of layers, all of them slide if the model has a window.
    kinds = set(getattr(text, "layer_types", None) or ["sliding_attention" if window else "full_attention"])
    window = window or max_model_len
    if kinds - {"full_attention", "sliding_attention"} or ("sliding_attention" in kinds and window < max_model_len):
        raise EngineError(
            f"model_type {text.model_type!r} has layers {sorted(kinds)} (window {window}), expected full attention "
            f"over max_model_len={max_model_len}: use engine.kind=vllm, or a smaller max_model_len"
        )
