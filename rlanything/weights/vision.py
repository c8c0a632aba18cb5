"""Engine and learner both read pixels of files and positions of tokens from a transformers model of images."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image as Pictures
from torch import Tensor, nn
from transformers import AutoImageProcessor


class ImageModel:
    """The parts of a transformers model of images and texts, such as Qwen3-VL, that concern images."""

    def __init__(self, lm: Any, path: str, trust_remote_code: bool) -> None:
        """`path` is the model's folder or name, which holds the image processor."""
        self.model = lm.base_model
        self.token: int = lm.config.image_token_id
        self.tower: nn.Module = lm.base_model.visual
        """The vision tower, which turns pixels into tokens."""
        self.merge: int = lm.config.vision_config.spatial_merge_size
        """Patches along each side of a token."""
        self._processor: Any = AutoImageProcessor.from_pretrained(path, trust_remote_code=trust_remote_code)
        for module in self.tower.modules():
            if isinstance(module, nn.Conv3d) and module.kernel_size == module.stride:
                module.forward = partial(_patches, module)  # type: ignore[method-assign]

    def rope_positions(self, ids: Sequence[int] | np.ndarray, sizes: Sequence[tuple[int, int]]) -> np.ndarray:
        """Time, row and column of each token, shape [3, T], by the model's own rule (M-RoPE).

        `sizes` are the rows and columns of tokens of the images, in their order.
        """
        ids_1T = torch.as_tensor(ids)[None]
        grids = [[1, rows * self.merge, columns * self.merge] for rows, columns in sizes]
        found: Tensor = self.model.get_rope_index(
            ids_1T, (ids_1T == self.token).int(), image_grid_thw=torch.tensor(grids) if grids else None
        )[0]
        return found[:, 0].numpy()

    def processed(self, path: str) -> tuple[Tensor, Tensor]:
        """An image file as the model reads it: pixels [patches, values], and the grid [1, 3] of its patches.

        Raises OSError if the file cannot be read.
        """
        try:
            with Pictures.open(path) as picture:
                found = self._processor(images=[picture.convert("RGB")], return_tensors="pt")
        except SyntaxError as error:  # Pillow's name for a broken PNG file
            raise OSError(f"{path}: {error}") from error
        return found["pixel_values"], found["image_grid_thw"]


def _patches(convolution: nn.Conv3d, pixels: Tensor) -> Tensor:
    """A convolution over single patches [N, ...] as a matrix product [N, D], which a CPU computes faster."""
    return nn.functional.linear(pixels.flatten(1), convolution.weight.flatten(1), convolution.bias)
