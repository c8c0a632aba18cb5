"""A model that reads images needs pixels besides token ids, and positions in three dimensions.

The images are those that the samples name. Each is opened and processed when its micro-batch is computed, because the
pixels of a step's screenshots would fill the memory. Equal images of one micro-batch go through the tower once.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image as Pictures
from torch import Tensor, nn
from transformers import AutoImageProcessor

from rlanything.config.schema import ModelConfig
from rlanything.errors import LearnerError
from rlanything.learner.packing import MicroBatch
from rlanything.types import Sample


class Vision:
    """The images of a transformers model of images and texts, such as Qwen3-VL."""

    def __init__(self, lm: Any, model: ModelConfig) -> None:
        self._model, self._token = lm.base_model, lm.config.image_token_id
        self.tower: nn.Module = lm.base_model.visual
        """The vision tower, which turns pixels into tokens."""
        self._merge = lm.config.vision_config.spatial_merge_size
        for module in lm.base_model.modules():
            if isinstance(module, nn.Conv3d) and module.kernel_size == module.stride:
                module.forward = partial(_patches, module)  # type: ignore[method-assign]
        self._order: list[int] = []  # of each image of the micro-batch, its place among those that differ
        self._model.get_image_features = partial(self._features, self._model.get_image_features)
        self._processor: Any = AutoImageProcessor.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)

    @property
    def patches_per_token(self) -> int:
        """Patches that the tower merges into one token."""
        return int(self._merge**2)

    def positions(self, sample: Sample) -> np.ndarray:
        """Time, row and column of a sample's tokens, shape [3, T], by the model's own rule (M-RoPE)."""
        ids = torch.from_numpy(sample.ids)[None]
        grids = [[1, image.rows * self._merge, image.columns * self._merge] for image in sample.images]
        found: Tensor = self._model.get_rope_index(
            ids, (ids == self._token).int(), image_grid_thw=torch.tensor(grids) if grids else None
        )[0]
        return found[:, 0].numpy()

    def inputs(self, batch: MicroBatch, ids: Tensor) -> dict[str, Tensor]:
        """The model's further arguments for a micro-batch whose ids [B, T] are on the model's device."""
        kinds = (ids == self._token).int()
        places = {digest: i for i, digest in enumerate(dict.fromkeys(image.digest for image in batch.images))}
        paths = {image.digest: image.path for image in batch.images}
        self._order = [places[image.digest] for image in batch.images] or [0]
        found = [self.processed(paths[digest]) for digest in places] or ([self._blank()] if kinds.any() else [])
        if not found:
            return {"mm_token_type_ids": kinds}
        pixels, grids = zip(*found, strict=True)
        return {
            "mm_token_type_ids": kinds,
            "pixel_values": torch.cat(pixels).to(ids.device),
            "image_grid_thw": torch.cat(grids).to(ids.device),
        }

    def _features(self, compute: Callable[..., Any], *given: Any, **options: Any) -> Any:
        """The model's own features of the images that differ, repeated in the order of the micro-batch's images."""
        found = compute(*given, **options)
        found.pooler_output = [found.pooler_output[i] for i in self._order]
        if deep := getattr(found, "deepstack_features", None):
            found.deepstack_features = [[layer[i] for i in self._order] for layer in deep]
        return found

    def with_blank(self, batch: MicroBatch) -> MicroBatch:
        """A micro-batch without images, with a further row that holds one blank image and nothing that trains.

        Ranks exchange weights and gradients module by module, in the order in which they compute. If one of them left
        the tower out, the others would wait for it, or exchange what does not belong together.
        """
        length = batch.ids.shape[1]
        ids, positions = np.zeros((1, length), np.int64), np.zeros((len(batch.positions), 1, length), np.int64)
        ids[0, 0] = self._token
        return replace(
            batch,
            ids=np.concatenate([batch.ids, ids]),
            positions=np.concatenate([batch.positions, positions], axis=1),
            ends=np.concatenate([batch.ends, np.arange(1, length + 1)[None]]),
        )

    def _blank(self) -> tuple[Tensor, Tensor]:
        """An image of one token, in the form that `processed` returns."""
        patch = next(m for m in self.tower.modules() if isinstance(m, nn.Conv3d))
        values = patch.in_channels * math.prod(patch.kernel_size)
        return torch.zeros(self._merge**2, values), torch.tensor([[1, self._merge, self._merge]])

    def processed(self, path: str) -> tuple[Tensor, Tensor]:
        """An image file as the model reads it: pixels [patches, values], and the grid [1, 3] of its patches.

        Raises LearnerError if the file cannot be read.
        """
        try:
            with Pictures.open(path) as picture:
                found = self._processor(images=[picture.convert("RGB")], return_tensors="pt")
        except OSError as error:
            raise LearnerError(
                f"{path}: an image of a sample cannot be read ({error}); keep the run's folder images/, which every "
                "node must see"
            ) from error
        return found["pixel_values"], found["image_grid_thw"]


def _patches(convolution: nn.Conv3d, pixels: Tensor) -> Tensor:
    """A convolution over single patches [N, ...] as a matrix product [N, D], which a CPU computes faster."""
    return nn.functional.linear(pixels.flatten(1), convolution.weight.flatten(1), convolution.bias)
