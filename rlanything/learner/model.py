"""A Hugging Face causal LM over packed token trees: log-probabilities where the loss needs them, and only there.

The language model itself is the library's; this file gives it the tree mask and replaces the head's [B, T, V]
logits by chunks over the trained tokens. Simplification: full attention only, a sliding-window model is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rlanything.config import ModelConfig
from rlanything.errors import ClearError
from rlanything.learner.packing import MicroBatch

HEAD_CHUNK_ELEMENTS = 1 << 23  # logits alive at once: 32 MiB in float32
GPU_CHUNKS = 16  # times as many on a GPU, which small products leave idle
QUERY_CHUNK = 128  # queries per attention product: keys after the chunk's end are never touched
FLEX_BLOCK = 128  # FlexAttention's block size, to which rows are padded on a GPU
SCALINGS = ("logits_scaling", "logit_scale", "final_logit_softcapping")  # of logits, which `_head` does not apply


class LearnerError(ClearError, RuntimeError):
    """A model or an update that cannot be trained: the message names it, what was found and what to do."""


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention under an additive mask [B, 1, T, T] on a CPU; query [B, H, T, D], key and value [B, K, T, D].

    Depth-first order makes the mask causal, so a chunk of queries needs the keys up to its end alone. Plain
    products beat scaled_dot_product_attention's CPU kernel in training (about 1.5x the whole pass in bfloat16).
    Raises LearnerError where the model caps its scores or has attention sinks.
    """
    if softcap is not None or s_aux is not None:
        raise LearnerError("the model caps its attention scores or has attention sinks, which cannot train on a CPU")
    B, H, T, D = query.shape
    K = key.shape[1]
    query = (query * scaling).to(value.dtype)
    key_t = key.to(value.dtype).transpose(2, 3)
    out = []
    for start in range(0, T, QUERY_CHUNK):
        stop = min(start + QUERY_CHUNK, T)
        n = stop - start
        scores = torch.matmul(query[:, :, start:stop].reshape(B, K, H // K * n, D), key_t[..., :stop])
        scores = scores.view(B, H, n, stop)
        scores += attention_mask[:, :, start:stop, :stop]
        mixed = torch.matmul(scores.softmax(-1).view(B, K, H // K * n, stop), value[:, :, :stop])
        out.append(mixed.view(B, H, n, D))
    return torch.cat(out, dim=2).transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register("rlanything_tree", tree_attention)


def tree_mask(ends: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """FlexAttention's mask_mod for packed trees of `ends` [B, T]: a token sees its ancestors and itself."""

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q < ends[b, k])

    return visible


def _check_trainable(config: Any, path: str) -> None:
    kinds = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    if kinds:
        raise LearnerError(f"model {path}: layers of kind {', '.join(kinds)}; only full_attention can train")
    if found := [name for name in SCALINGS if getattr(config, name, None) not in (None, 1)]:
        raise LearnerError(f"model {path}: its config sets {', '.join(found)}, which training does not apply")


def dense_mask(ends: Tensor, dtype: torch.dtype) -> Tensor:
    """The same mask, additive: [B, 1, T, T] of 0 and -inf for `ends` [B, T] on a CPU."""
    B, T = ends.shape
    query = torch.arange(T)[None, :, None]
    visible_BTT = (query >= torch.arange(T)) & (query < ends[:, None, :])
    return torch.zeros(B, T, T, dtype=dtype).masked_fill_(~visible_BTT, float("-inf"))[:, None]


class TreeModel(nn.Module):
    """`model(batch, temperature)` gives log-probabilities and entropies [E] of the batch's entries, in float32.

    The weights are float32, or of `dtype` where they are `frozen` (for adapters); `dtype` is that of the forward pass
    (autocast). The dropout of a model's config is switched off, for the engine that sampled has none. `partitioned`:
    by ZeRO-3, which gathers a module's weights when it is called.
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        entropy_gradient: bool,
        frozen: bool = False,
        partitioned: bool = False,
    ) -> None:
        super().__init__()
        self.lm = AutoModelForCausalLM.from_pretrained(
            config.path,
            dtype=dtype if frozen else torch.float32,
            trust_remote_code=config.trust_remote_code,
            attention_dropout=0.0,
            attn_implementation="flex_attention" if device.type == "cuda" else "rlanything_tree",
        )
        _check_trainable(self.lm.config, config.path)
        self.dtype, self.device, self.entropy_gradient = dtype, device, entropy_gradient
        # Autocast keeps what it has cast until the pass ends: all of the model, where a rank should hold a part.
        self.keeps_casts = not partitioned
        # The head is called once a pass, however many chunks a rank's entries make: ranks gather it equally often.
        self.lm.lm_head.forward = self._entries

    @property
    def pairs_per_token(self) -> float:
        """How many pairs of a dense attention cost as much as one token in the rest of the model."""
        if self.device.type == "cuda":
            return float("inf")
        c = self.lm.config
        head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        width = c.num_attention_heads * head_dim
        # Multiply-adds a layer: four projections and a gated MLP, against a score and a mix per pair. A pair costs
        # about twice its arithmetic, for the softmax is bound by memory.
        token = 2 * c.hidden_size * (width + c.num_key_value_heads * head_dim) + 3 * c.hidden_size * c.intermediate_size
        return token / (2 * 2 * width)

    def forward(self, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [E] under softmax(logits / temperature)."""
        ids, positions, ends, nodes, targets = (
            torch.from_numpy(a).to(self.device, non_blocking=True)
            for a in (batch.ids, batch.positions, batch.ends, batch.entries.nodes, batch.entries.targets)
        )
        enabled = self.dtype != torch.float32
        with torch.autocast(self.device.type, self.dtype, enabled=enabled, cache_enabled=self.keeps_casts):
            hidden = self.lm.base_model(
                ids, attention_mask=self._mask(ends), position_ids=positions, use_cache=False
            ).last_hidden_state
            logprobs, entropy = self.lm.lm_head(hidden.flatten(0, 1)[nodes], targets, temperature)
        return logprobs, entropy

    def _entries(self, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """The head's forward pass: log-probabilities and entropies in the place of logits."""
        elements = HEAD_CHUNK_ELEMENTS * (GPU_CHUNKS if self.device.type == "cuda" else 1)
        chunk = max(1, elements // self.lm.config.vocab_size)
        if len(hidden) <= chunk:
            return self._head(hidden, targets, temperature)
        parts = [
            checkpoint(self._head, h, t, temperature, use_reentrant=False, preserve_rng_state=False)
            for h, t in zip(hidden.split(chunk), targets.split(chunk), strict=True)
        ]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    def _head(self, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        head = self.lm.lm_head
        logits = nn.functional.linear(hidden, head.weight, head.bias)
        logp = (logits.float() / temperature).log_softmax(-1)
        logprobs = logp.gather(-1, targets[:, None])[:, 0]
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.entropy_gradient):
            entropy = -(logp.exp() * logp).sum(-1)
        return logprobs, entropy

    def _mask(self, ends: Tensor) -> Any:
        B, T = ends.shape
        if self.device.type == "cuda":
            return create_block_mask(tree_mask(ends), B, None, T, T, device=str(self.device), BLOCK_SIZE=FLEX_BLOCK)
        return dense_mask(ends, self.dtype)
