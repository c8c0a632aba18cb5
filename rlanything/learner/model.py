"""A Hugging Face causal LM over packed token trees: log-probabilities where the loss needs them, and only there.

The language model itself is the library's; this file gives it the tree mask and replaces the head's [B, T, V]
logits by chunks over the trained tokens. Simplification: full attention only, a sliding-window model is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from rlanything.config.schema import ModelConfig
from rlanything.errors import LearnerError
from rlanything.learner.attention import dense_mask, flex_mask
from rlanything.learner.packing import MicroBatch

HEAD_CHUNK_ELEMENTS = 1 << 23  # logits alive at once: 32 MiB in float32
GPU_CHUNKS = 16  # times as many on a GPU, which small products leave idle
COMPILES = 64  # of FlexAttention, or of a layer: each model, shape and kind of pass has its own
SCALINGS = ("logits_scaling", "logit_scale", "final_logit_softcapping")  # of logits, which `_head` does not apply


def _check_trainable(config: Any, path: str) -> None:
    kinds = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    if kinds:
        raise LearnerError(f"model {path}: layers of kind {', '.join(kinds)}; only full_attention can train")
    window = getattr(config, "sliding_window", None)
    if window and not getattr(config, "layer_types", None) and window < config.max_position_embeddings:
        raise LearnerError(f"model {path}: all its layers have sliding_window={window}; only full_attention can train")
    if found := [name for name in SCALINGS if getattr(config, name, None) not in (None, 1)]:
        raise LearnerError(f"model {path}: its config sets {', '.join(found)}, which training does not apply")


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
        # Beyond torch's limit what is compiled runs uncompiled: FlexAttention then holds the scores of all pairs.
        torch._dynamo.config.recompile_limit = COMPILES
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

    def compile_layers(self) -> None:
        """Have torch.compile make each layer's passes over memory few, when it is first called. Raises LearnerError
        where the model's layers are not of the library's kind."""
        layers = [module for module in self.lm.modules() if isinstance(module, GradientCheckpointingLayer)]
        if not layers:
            raise LearnerError(
                f"compile=true: no layer of {type(self.lm).__name__} can be told from its parts; set false"
            )
        for layer in layers:
            layer.compile()

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
        return flex_mask(ends) if self.device.type == "cuda" else dense_mask(ends, self.dtype)
