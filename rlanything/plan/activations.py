"""Estimate the memory of a learner's activations: what a forward pass keeps for the backward pass."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass

import torch

from rlanything.config.schema import LearnerConfig, ModelConfig
from rlanything.weights.files import local_folder
from rlanything.weights.precision import torch_dtype

LAYER_BYTES = 34  # a token's and a unit of width's in one layer, 16-bit, without attention scores: arXiv 2205.05198
ASPECT = 128  # width over layers of common decoders, to guess both from the number of parameters
CHECKPOINT_BYTES = 4  # a layer's input is kept in float32, under autocast too


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A decoder's width and number of layers."""

    width: int
    layers: int
    known: bool
    """Read from config.json; else guessed from the number of parameters."""

    def __str__(self) -> str:
        return f"{self.layers} layers of width {self.width}" + ("" if self.known else ", guessed from its size")


def model_shape(model: ModelConfig, parameters: float) -> Shape:
    """The shape by the model's config.json, or by its number of parameters: 12 layers width^2, width = 128 layers."""
    file = local_folder(model.path) / "config.json"
    with suppress(OSError, ValueError):  # a damaged file is named where the model is checked
        found = json.loads(file.read_text(encoding="utf-8"))
        found = found.get("text_config") or found
        if "hidden_size" in found and "num_hidden_layers" in found:
            return Shape(width=found["hidden_size"], layers=found["num_hidden_layers"], known=True)
    width = (parameters * ASPECT / 12) ** (1 / 3)
    return Shape(width=round(width), layers=round(width / ASPECT), known=False)


def activation_bytes(shape: Shape, config: LearnerConfig, on_accelerator: bool) -> float:
    """Bytes of `micro_batch_tokens` tokens. With checkpointing each layer keeps its input, and one is computed anew."""
    wide = 1 if torch_dtype(config.dtype, on_accelerator) is torch.bfloat16 else 2
    layer = LAYER_BYTES * wide * shape.width
    if config.gradient_checkpointing:
        token = shape.layers * CHECKPOINT_BYTES * shape.width + layer
    else:
        token = shape.layers * layer
    return float(config.micro_batch_tokens * token)
