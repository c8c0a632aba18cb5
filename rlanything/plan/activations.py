"""Estimate the memory that a learner takes beside its weights and its optimizer: activations, logits, a transfer."""

import json
from contextlib import suppress
from dataclasses import dataclass

import torch

from rlanything.config.schema import LearnerConfig, ModelConfig
from rlanything.learner.model import GPU_CHUNKS, HEAD_CHUNK_ELEMENTS
from rlanything.weights.files import local_folder
from rlanything.weights.precision import torch_dtype

LAYER_BYTES = 34  # a token's and a unit of width's in one layer, 16-bit, without attention scores: arXiv 2205.05198
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
    known: bool
    """Read from config.json; else guessed from the number of parameters."""
    tower_width: int = 0
    """Width of the vision tower, which computes patches."""
    tower_layers: int = 0
    """0 without a tower."""

    def __str__(self) -> str:
        return f"{self.layers} layers of width {self.width}" + ("" if self.known else ", guessed from its size")


def model_shape(model: ModelConfig, parameters: float) -> Shape:
    """The shape by the model's config.json, or by its number of parameters: 12 layers width^2, width = 128 layers."""
    file = local_folder(model.path) / "config.json"
    with suppress(OSError, ValueError):  # a damaged file is named where the model is checked
        found = json.loads(file.read_text(encoding="utf-8"))
        tower, found = found.get("vision_config") or {}, found.get("text_config") or found
        if "hidden_size" in found and "num_hidden_layers" in found:
            return Shape(
                width=found["hidden_size"],
                layers=found["num_hidden_layers"],
                vocabulary=found.get("vocab_size", VOCABULARY),
                known=True,
                tower_width=tower.get("hidden_size", 0),
                tower_layers=tower.get("depth", 0),
            )
    width = (parameters * ASPECT / 12) ** (1 / 3)
    return Shape(width=round(width), layers=round(width / ASPECT), vocabulary=VOCABULARY, known=False)


def activation_bytes(shape: Shape, config: LearnerConfig, on_accelerator: bool) -> float:
    """Bytes of `micro_batch_tokens` tokens, of as many patches of images if they train the vision tower, and of the
    chunk of logits that is computed at once.

    With checkpointing each layer keeps its input, and one layer is computed anew.
    """
    wide = 1 if torch_dtype(config.dtype, on_accelerator) is torch.bfloat16 else 2

    def kept(width: int, layers: int) -> int:
        """Bytes of a token, or of a patch."""
        layer = LAYER_BYTES * wide * width
        return layers * CHECKPOINT_BYTES * width + layer if config.gradient_checkpointing else layers * layer

    token = kept(shape.width, shape.layers)
    if config.train_vision and shape.tower_layers:
        token += kept(shape.tower_width, shape.tower_layers)
    logits = min(
        config.micro_batch_tokens * shape.vocabulary, HEAD_CHUNK_ELEMENTS * (GPU_CHUNKS if on_accelerator else 1)
    )
    return float(config.micro_batch_tokens * token + logits * LOGITS_BYTES)


def transfer_bytes(shape: Shape) -> float:
    """Bytes that new weights take on their way to the engines: the largest tensor, one at a time."""
    return float(shape.vocabulary * shape.width * TRANSFER_BYTES)
