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
from torch import Tensor, nn

from rlanything.config.schema import ModelConfig
from rlanything.errors import LearnerError
from rlanything.learner.packing import MicroBatch
from rlanything.types import Sample
from rlanything.weights.vision import ImageModel


class Vision(ImageModel):
    """The images of micro-batches."""

    def __init__(self, lm: Any, model: ModelConfig) -> None:
        super().__init__(lm, model.path, model.trust_remote_code)
        self._order: list[int] = []  # of each image of the micro-batch, its place among those that differ
        self.model.get_image_features = partial(self._features, self.model.get_image_features)

    @property
    def patches_per_token(self) -> int:
        """Patches that the tower merges into one token."""
        return int(self.merge**2)

    def positions(self, sample: Sample) -> np.ndarray:
        """Time, row and column of a sample's tokens, shape [3, T]."""
        return self.rope_positions(sample.ids, [(image.rows, image.columns) for image in sample.images])

    def inputs(self, batch: MicroBatch, ids: Tensor) -> dict[str, Tensor]:
        """The model's further arguments for a micro-batch whose ids [B, T] are on the model's device."""
        kinds = (ids == self.token).int()
        places = {digest: i for i, digest in enumerate(dict.fromkeys(image.digest for image in batch.images))}
        paths = {image.digest: image.path for image in batch.images}
        self._order = [places[image.digest] for image in batch.images] or [0]
        found = [self._opened(paths[digest]) for digest in places] or ([self._blank()] if kinds.any() else [])
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
        ids[0, 0] = self.token
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
        return torch.zeros(self.merge**2, values), torch.tensor([[1, self.merge, self.merge]])

    def _opened(self, path: str) -> tuple[Tensor, Tensor]:
        """`processed`. Raises LearnerError if the file cannot be read."""
        try:
            return self.processed(path)
        except OSError as error:
            raise LearnerError(
                f"{path}: an image of a sample cannot be read ({error}); keep the run's folder images/, which every "
                "node must see"
            ) from error
