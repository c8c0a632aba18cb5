"""A Hugging Face causal language model over packed token trees. It computes log-probabilities only where needed.

The model is transformers'. This file gives it the tree mask, and computes the head's logits in chunks over the trained
tokens only. It refuses models that have anything but full attention, such as sliding windows.
"""

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.modeling_layers import GradientCheckpointingLayer

from rlanything.config.schema import LearnerConfig, ModelConfig
from rlanything.errors import LearnerError
from rlanything.learner.attention import CPU_ATTENTION, GPU_ATTENTION, dense_mask, flex_mask
from rlanything.learner.distributed import partitioned
from rlanything.learner.packing import MicroBatch, depths
from rlanything.learner.trainable import check_trainable
from rlanything.learner.vision import Vision
from rlanything.types import Sample
from rlanything.weights.files import loading
from rlanything.weights.heads import head_dim, key_heads
from rlanything.weights.images import BIAS, reads_images, unwritten_ids
from rlanything.weights.precision import torch_dtype

HEAD_CHUNK_ELEMENTS = 1 << 23  # logits held at once: 32 MiB in float32
GPU_CHUNKS = 16  # factor of HEAD_CHUNK_ELEMENTS on a GPU, which small products would leave idle
RECOMPILE_LIMIT = 64  # compiled variants of FlexAttention or of a layer: one per model, shape and kind of pass


class TreeModel(nn.Module):
    """`model(batch, temperature)` returns log-probabilities and entropies [E] of the batch's entries, in float32.

    The forward pass runs in `config.dtype` by autocast. The weights are float32, or of that dtype if they are frozen
    under adapters. ZeRO-3 partitions them, and gathers a module's weights when the module is called. Dropout is always
    off, because the engine that sampled has none.

    Raises LearnerError if the model cannot be trained.
    """

    def __init__(self, model: ModelConfig, config: LearnerConfig, device: torch.device) -> None:
        super().__init__()
        # Beyond this limit torch runs code uncompiled, and FlexAttention then stores the scores of all pairs.
        torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
        self.dtype, self.device = torch_dtype(config.dtype, device.type != "cpu"), device
        self.entropy_gradient = config.entropy_bonus != 0
        # Autocast's cache would keep a whole copy of the weights in `dtype`, which ZeRO-3 is meant to avoid.
        self.autocast_cache = config.zero_stage != 3
        source = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
        check_trainable(source, model.path, device.type == "cuda")
        self.source_dtype: torch.dtype = source.dtype or torch.float32  # of the weights in the model's files
        source.get_text_config().attention_dropout = 0.0
        attention: Any = GPU_ATTENTION if device.type == "cuda" else CPU_ATTENTION
        sees = reads_images(source)
        with loading(model.path), partitioned(config):
            self.lm = (AutoModelForImageTextToText if sees else AutoModelForCausalLM).from_pretrained(
                model.path,
                config=source,
                dtype=self.dtype if config.lora_rank else torch.float32,
                trust_remote_code=model.trust_remote_code,
                attn_implementation={"text_config": attention, "vision_config": "sdpa"} if sees else attention,
            )
        self.vision = Vision(self.lm, model) if sees else None
        self.unwritten = unwritten_ids(source)
        if self.vision and not config.train_vision:
            self.vision.tower.requires_grad_(False)
        # ZeRO-3 gathers the head whenever it is called. One call a pass, instead of one a chunk, makes ranks gather it
        # equally often, although they have unequal numbers of entries.
        self.lm.lm_head.forward = self._score

    def compile_layers(self) -> None:
        """Let torch.compile fuse each layer's operations when it is first called.

        Raises LearnerError if the model has no layers of transformers' own class.
        """
        layers = [module for module in self.lm.modules() if isinstance(module, GradientCheckpointingLayer)]
        if not layers:
            raise LearnerError(
                f"compile: found true, but {type(self.lm).__name__} has no layers that transformers marks as such; "
                "set it to false"
            )
        for layer in layers:
            layer.compile()

    def positions(self, sample: Sample) -> np.ndarray:
        """The positions [P, T] of a sample's tokens: P is 1 for texts, 3 (time, row, column) for a model of images."""
        return self.vision.positions(sample) if self.vision else depths(sample)

    @property
    def pairs_per_token(self) -> float:
        """How many query-key pairs cost as much as one token does outside attention; infinite on a GPU.

        Counted in multiply-adds a layer: four projections and a gated MLP for a token, a score and a weighted value for
        a pair. A pair counts twice, because the softmax is bound by memory.
        """
        if self.device.type == "cuda":
            return float("inf")
        c = self.lm.config.get_text_config()
        width = c.num_attention_heads * head_dim(c)
        mlp = getattr(c, "intermediate_size", None) or 4 * c.hidden_size  # as in GPT-2
        token = 2 * c.hidden_size * (width + key_heads(c) * head_dim(c)) + 3 * c.hidden_size * mlp
        return token / (2 * 2 * width)

    @property
    def patches_per_token(self) -> int:
        """Patches behind a token of an image, if the vision tower keeps its activations of them: if it is trained."""
        trained = self.vision and any(weight.requires_grad for weight in self.vision.tower.parameters())
        return self.vision.patches_per_token if self.vision and trained else 0

    def forward(self, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [E] under softmax(logits / temperature)."""
        if self.vision and not batch.images and dist.get_world_size() > 1:
            batch = self.vision.with_blank(batch)
        places = batch.positions if self.vision else batch.positions[0]
        ids, positions, ends, nodes, targets = (
            torch.from_numpy(a).to(self.device, non_blocking=True)
            for a in (batch.ids, places, batch.ends, batch.entries.nodes, batch.entries.targets)
        )
        enabled = self.dtype != torch.float32
        with torch.autocast(self.device.type, self.dtype, enabled=enabled, cache_enabled=self.autocast_cache):
            mask: Any = flex_mask(ends) if self.device.type == "cuda" else dense_mask(ends, self.dtype)
            images = self.vision.inputs(batch, ids) if self.vision else {}
            hidden = self.lm.base_model(
                ids, attention_mask=mask, position_ids=positions, use_cache=False, **images
            ).last_hidden_state
            logprobs, entropy = self.lm.lm_head(hidden.flatten(0, 1)[nodes], targets, temperature)
        return logprobs, entropy

    def _score(self, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """The head's forward pass in chunks: hidden [E, D], targets [E] -> log-probabilities [E], entropies [E]."""
        elements = HEAD_CHUNK_ELEMENTS * (GPU_CHUNKS if self.device.type == "cuda" else 1)
        chunk = max(1, elements // self.lm.lm_head.out_features)
        if len(hidden) <= chunk:
            return self._score_chunk(hidden, targets, temperature)
        parts = [
            checkpoint(self._score_chunk, h, t, temperature, use_reentrant=False, preserve_rng_state=False)
            for h, t in zip(hidden.split(chunk), targets.split(chunk), strict=True)
        ]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    def _score_chunk(self, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        head = self.lm.lm_head
        logits = nn.functional.linear(hidden, head.weight, head.bias)
        if self.unwritten:
            bias = logits.new_zeros(logits.shape[-1])
            bias[self.unwritten] = BIAS
            logits = logits + bias
        logp = (logits.float() / temperature).log_softmax(-1)
        logprobs = logp.gather(-1, targets[:, None])[:, 0]
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.entropy_gradient):
            entropy = -(logp.exp() * logp).sum(-1)
        return logprobs, entropy


def initial_model(model: ModelConfig, config: LearnerConfig, device: torch.device) -> nn.Module:
    """A frozen copy of the initial model for the KL term (`kl_reference: initial`), called like `TreeModel`.

    Its weights are float32 like the trained model's, so that the KL before the first update is exactly 0. ZeRO-3
    partitions them too, because a rank may lack memory for all of them.
    """
    import deepspeed  # after `start_deepspeed` has chosen the accelerator

    reference = TreeModel(model, config, device).to(device)
    reference.requires_grad_(False)
    if config.zero_stage != 3:
        return reference
    zero = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    engine: nn.Module = deepspeed.initialize(model=reference, config=zero, dist_init_required=False)[0]
    return engine
