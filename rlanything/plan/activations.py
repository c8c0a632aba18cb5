"""Estimate the memory that a learner takes beside its weights and its optimizer: activations, logits, a transfer."""

import json
from contextlib import suppress
from dataclasses import dataclass

from rlanything.config.schema import LearnerConfig, ModelConfig
from rlanything.learner.attention import KEPT_SCORES
from rlanything.learner.model import GPU_CHUNKS, HEAD_CHUNK_ELEMENTS
from rlanything.weights.files import local_folder
from rlanything.weights.precision import torch_dtype

# A layer keeps these of a token for its backward pass, as PyTorch's saved tensors of Qwen2 and Qwen3 show. Compiled
# layers keep less.
WIDTH_BYTES = 44  # a unit of width's: norms compute in float32 under autocast too
MLP_TENSORS = 4  # the gate, what its activation makes of it, what it is multiplied with, and their product
ASPECT = 128  # width over layers of common decoders, to guess both from the number of parameters
CHECKPOINT_BYTES = 4  # a layer's input is kept in float32, under autocast too
VOCABULARY = 152_064  # tokens of Qwen2.5's larger models, if nothing tells the model's own
TRANSFER_BYTES = 12  # an element of a tensor that is gathered in float32, cast, packed and taken
LOGITS_BYTES = 12  # a logit in float32, its log-probability, and the gradient of that


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A decoder's width, number of layers, and vocabulary [tokens]."""

    width: int
    layers: int
    vocabulary: int
    inner: int
    """Width within a layer's MLP."""
    heads: int
    """Number of query heads."""
    key_heads: int
    """Number of key and value heads."""
    head_width: int
    known: bool
    """Read from config.json; else guessed from the number of parameters."""
    tower_width: int = 0
    """Width of the vision tower, which computes patches."""
    tower_inner: int = 0
    tower_layers: int = 0
    """0 without a tower."""

    def adapted(self, train_vision: bool) -> int:
        """Elements of the linear layers' weights, which LoRA changes: of queries, keys, values, outputs and the MLP."""
        attention = 2 * (self.heads + self.key_heads) * self.head_width
        decoder = self.layers * self.width * (attention + 3 * self.inner)
        tower = self.tower_layers * self.tower_width * (4 * self.tower_width + 2 * self.tower_inner)
        return decoder + tower * train_vision

    def __str__(self) -> str:
        return f"{self.layers} layers of width {self.width}" + ("" if self.known else ", guessed from its size")


def model_shape(model: ModelConfig, parameters: float) -> Shape:
    """The shape by the model's config.json, or by its number of parameters: 12 layers width^2, width = 128 layers."""
    file = local_folder(model.path) / "config.json"
    with suppress(OSError, ValueError):  # a damaged file is named where the model is checked
        found = json.loads(file.read_text(encoding="utf-8"))
        tower, found = found.get("vision_config") or {}, found.get("text_config") or found
        if "hidden_size" in found and "num_hidden_layers" in found:
            heads = found.get("num_attention_heads", found["hidden_size"] // ASPECT)
            return Shape(
                width=found["hidden_size"],
                layers=found["num_hidden_layers"],
                vocabulary=found.get("vocab_size", VOCABULARY),
                inner=found.get("intermediate_size") or 4 * found["hidden_size"],  # as in GPT-2
                heads=heads,
                key_heads=found.get("num_key_value_heads") or heads,
                head_width=found.get("head_dim") or found["hidden_size"] // max(1, heads),
                known=True,
                tower_width=tower.get("hidden_size", 0),
                tower_inner=tower.get("intermediate_size") or 4 * tower.get("hidden_size", 0),
                tower_layers=tower.get("depth", 0),
            )
    width = (parameters * ASPECT / 12) ** (1 / 3)
    layers = round(width / ASPECT)  # likewise a head's width: 128
    return Shape(
        width=round(width),
        layers=layers,
        vocabulary=VOCABULARY,
        inner=round(8 * width / 3),
        heads=layers,
        key_heads=layers,
        head_width=ASPECT,
        known=False,
    )


def activation_bytes(shape: Shape, config: LearnerConfig, on_accelerator: bool) -> float:
    """Bytes of `micro_batch_tokens` tokens, of as many patches of images if they train the vision tower, and of the
    chunk of logits that is computed at once. A CPU keeps a mask and scores of attention too.

    With checkpointing each layer keeps its input, and one layer is computed anew.
    """
    size = torch_dtype(config.dtype, on_accelerator).itemsize
    tokens = config.micro_batch_tokens
    anew = 1 if config.gradient_checkpointing else shape.layers

    def kept(width: int, inner: int, layers: int) -> int:
        """Bytes of a token, or of a patch."""
        layer = WIDTH_BYTES * width + MLP_TENSORS * size * inner
        return layers * CHECKPOINT_BYTES * width + layer if config.gradient_checkpointing else layers * layer

    token = kept(shape.width, shape.inner, shape.layers)
    if config.train_vision and shape.tower_layers:
        token += kept(shape.tower_width, shape.tower_inner, shape.tower_layers)
    scores = 0 if on_accelerator else tokens**2 + anew * min(shape.heads * tokens**2 // 2, KEPT_SCORES)
    logits = min(tokens * shape.vocabulary, HEAD_CHUNK_ELEMENTS * (GPU_CHUNKS if on_accelerator else 1))
    return float(tokens * token + scores * size + logits * LOGITS_BYTES)


def transfer_bytes(shape: Shape) -> float:
    """Bytes that new weights take on their way to the engines: the largest tensor, one at a time."""
    return float(shape.vocabulary * shape.width * TRANSFER_BYTES)
