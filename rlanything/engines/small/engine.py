"""The small engine: batched decoding of a Hugging Face model with a persistent block cache, in process, on a CPU.

The model's own forward runs over packed tokens (see `attention`), so it serves every family whose attention goes
through transformers' attention interface. `blocks` remembers sequences that have ended, so the next turn of an episode,
or the next judge prompt about it, prefills only new tokens. It has no sliding windows, attention sinks or GPUs.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedConfig

from rlanything.config.schema import EngineConfig, ModelConfig
from rlanything.engines.admission import Admission
from rlanything.engines.base import Completion, EngineError
from rlanything.engines.local import GIB, Request, SteppedEngine, token_ids
from rlanything.engines.small.attention import BLOCK_SIZE, IMPLEMENTATION, BlockCache, round_up
from rlanything.engines.small.blocks import BlockPool
from rlanything.engines.small.sampling import sample, uniform
from rlanything.engines.small.scheduler import Scheduler, Sequence
from rlanything.engines.small.vision import Vision
from rlanything.weights.checksum import LM_HEAD, checksum
from rlanything.weights.files import loading
from rlanything.weights.heads import cached_values, head_dim, key_heads
from rlanything.weights.images import reads_images
from rlanything.weights.lora import with_base
from rlanything.weights.precision import torch_dtype


class TransformersEngine(SteppedEngine):
    """The same submissions give the same tokens. The samples of a request share one prefill."""

    def __init__(self, model: ModelConfig, config: EngineConfig, seed: int, log_path: Path) -> None:
        super().__init__(config, torch_dtype(config.dtype, on_accelerator=False), seed, log_path)
        source = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
        _check_supported(source.get_text_config(), self.max_model_len)
        sees = reads_images(source)
        attention: Any = {"text_config": IMPLEMENTATION, "vision_config": "sdpa"} if sees else IMPLEMENTATION
        with loading(model.path):
            self.model = (
                (AutoModelForImageTextToText if sees else AutoModelForCausalLM)
                .from_pretrained(
                    model.path,
                    dtype=self.dtype,
                    attn_implementation=attention,
                    trust_remote_code=model.trust_remote_code,
                )
                .eval()
            )
        self._vision = Vision(self.model, model) if sees else None
        text = self.model.config.get_text_config()
        self._stop_ids = token_ids(text.eos_token_id) | token_ids(self.model.generation_config.eos_token_id)
        self._files: dict[str, torch.Tensor] = {}
        self._adapters: dict[str, torch.Tensor] = {}
        num_blocks = self._num_blocks(config.kv_cache_gb, cached_values(text))
        self._cache_shape = (text.num_hidden_layers, num_blocks, key_heads(text), head_dim(text))
        self._cache: BlockCache | None = BlockCache(*self._cache_shape, self.dtype)
        self._admission = Admission(num_blocks * BLOCK_SIZE)
        pool = BlockPool(num_blocks, BLOCK_SIZE)
        self._scheduler = Scheduler(pool, config.max_num_seqs, self.max_model_len, self._stats)

    def _num_blocks(self, cache_gb: float, values_per_token: int) -> int:
        block_bytes = 2 * values_per_token * BLOCK_SIZE * self.dtype.itemsize
        found = int(cache_gb * GIB) // block_bytes
        needed = -(-self.max_model_len // BLOCK_SIZE)
        if found < needed:
            raise EngineError(
                f"engine.kv_cache_gb={cache_gb} holds {found * BLOCK_SIZE} tokens, expected at least max_model_len="
                f"{self.max_model_len}: raise it to {needed * block_bytes / GIB:.3f}, or lower max_model_len"
            )
        return found

    def _submit(self, request: Request) -> None:
        if self._cache is None:
            raise EngineError("the engine sleeps: call wake() before generate()")
        if self._vision:
            self._vision.prepare(request)
        self._scheduler.submit(request)

    def _abort(self, numbers: list[int]) -> None:
        self._scheduler.abort(numbers)

    def _load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Raises EngineError naming weights that are missing, unknown or misshapen."""
        own = self._weights()
        missing = set(own)
        weights, self._adapters = with_base(tensors, self._base)
        if not self._adapters:
            self._files = {}
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

    def _base(self, adapted: Iterable[str]) -> Iterable[tuple[str, torch.Tensor]]:
        """The weights to which adapters are added, those of the files. Of those that adapters change a copy is kept."""
        own = self._weights()
        self._files |= {name: own[name].clone() for name in adapted if name in own and name not in self._files}
        return (own | self._files).items()

    def _weights(self) -> dict[str, torch.Tensor]:
        return dict(self.model.named_parameters())  # tied weights come once, under the embedding's name

    def _reset_caches(self) -> None:
        self._scheduler.pool.clear()
        if self._vision:
            self._vision.clear()

    def checksum(self) -> str:
        """The checksum of the weights in use, or of the adapters as they came."""
        return checksum((self._adapters or self._weights()).items(), self.dtype)

    def sleep(self) -> None:
        """Free the KV cache and forget its content."""
        self._require_idle("sleep")
        self._reset_caches()
        self._cache = None

    def wake(self, cache: bool = True) -> None:
        """Allocate the KV cache again; the weights stay in memory during sleep."""
        if cache and self._cache is None:
            self._cache = BlockCache(*self._cache_shape, self.dtype)

    def close(self) -> None:
        """Fail unanswered requests and drop the cache."""
        self._fail(EngineError("the engine was closed"))
        self._cache = None

    def _step(self) -> list[tuple[int, list[Completion]]]:
        """Admit what fits, run one forward pass over prefills and decodes, and sample."""
        self._scheduler.admit()
        batch = sorted(self._scheduler.select(), key=lambda item: (round_up(item[1]), item[0].computed))
        logits_NV = self._forward(batch)
        return self._sample(self._scheduler.advance(batch), logits_NV)

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
        inputs: dict[str, Any] = {"position_ids": torch.from_numpy(packed[1:])}
        if self._vision:
            new = [(s.request, s.computed, s.computed + length) for s, length in batch]
            inputs = self._vision.inputs(new, packed[0])
        output = self.model(
            input_ids=torch.from_numpy(packed[:1]),
            use_cache=False,
            logits_to_keep=torch.from_numpy(np.cumsum(lengths) - 1),
            block_cache=cache,
            **inputs,
        )
        if self._vision:
            self._vision.forbid(output.logits[0])
        return output.logits[0]

    def _sample(self, ready: list[tuple[int, Sequence]], logits_NV: torch.Tensor) -> list[tuple[int, list[Completion]]]:
        """Sample the next token of each ready sequence. Returns the requests that have ended, as `_step` does."""
        if not ready:
            return []
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
        ended = []
        for sequence, token, logprob in zip(sequences, tokens, logprobs, strict=True):
            request = sequence.request
            sequence.tokens.append(token)
            sequence.logprobs.append(logprob)
            stop = token in self._stop_ids or token in request.sampling.stop_token_ids
            if stop or len(sequence.logprobs) == request.max_tokens:
                self._scheduler.release(sequence)
                response = sequence.tokens[len(request.prompt) :]
                completion = Completion(response, sequence.logprobs, "stop" if stop else "length")
                request.completions[sequence.index] = completion
                if len(request.completions) == request.n:
                    ended.append((request.number, [request.completions[i] for i in range(request.n)]))
        return ended


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
