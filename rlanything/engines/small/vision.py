"""Images among packed tokens: what tells their tokens apart, their positions, and the tower's outputs for them."""

from collections.abc import Iterator, Sequence
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlanything.config.schema import ModelConfig
from rlanything.engines.base import EngineError
from rlanything.engines.local import Request
from rlanything.types import Image
from rlanything.weights.images import BIAS, unwritten_ids
from rlanything.weights.vision import ImageModel

KEPT_BYTES = 1 << 28  # of the tower's outputs: a screen of a drawn desktop has 60 to 120 KB, one of 1080p 100 MB
New = Sequence[tuple[Request, int, int]]
"""(request, start, end) of the tokens of a model step, in their order."""


class Vision:
    """The images of the small engine.

    All tokens of an image have the same id. In a request they are negative numbers that stand for the image's content,
    so that the block cache shares blocks of equal images and of no others. The tower's outputs are kept until they
    take too much room, for judge prompts show most screens twice.
    """

    def __init__(self, lm: Any, model: ModelConfig) -> None:
        """Raises EngineError if the model takes no outputs of its vision tower, or has no positions of images."""
        known = all(hasattr(lm.base_model, name) for name in ("visual", "get_rope_index"))
        if not known or "mm_encoder_outputs" not in signature(lm.base_model.forward).parameters:
            raise EngineError(
                f"model.path={model.path!r}: {type(lm).__name__} reads images in a way that the small engine does not "
                "know; set this role's engine.*.kind=vllm"
            )
        self._images = ImageModel(lm, model.path, model.trust_remote_code)
        self._unwritten = unwritten_ids(lm.config)
        self._outputs: dict[str, list[Tensor]] = {}  # by digest: tokens [T, D], then those of each deeper layer
        self._bytes = 0

    def prepare(self, request: Request) -> None:
        """Give a request its positions, and each image's tokens their number.

        Raises EngineError if the prompt has other images than its tokens say, or if an image's file is gone.
        """
        found, expected = request.prompt.count(self._images.token), sum(image.num_token for image in request.images)
        if found != expected:
            raise EngineError(
                f"a prompt has {found} tokens of images, expected {expected} for its {len(request.images)} images: a "
                "prompt without a chat template spells the token, or the template does not belong to the model"
            )
        if gone := [image.path for image in request.images if not Path(image.path).is_file()]:
            raise EngineError(f"{gone[0]}: the image of a prompt is gone; keep the run's folder images/")
        sizes = [(image.rows, image.columns) for image in request.images]
        prompt = self._images.rope_positions(request.prompt, sizes)
        after = np.arange(request.max_tokens) + prompt.max() + 1
        request.positions = np.concatenate([prompt, np.broadcast_to(after, (3, request.max_tokens))], axis=1)
        request.prompt = list(request.prompt)
        for image in request.images:
            number = -1 - int(image.digest[:15], 16)  # 60 bits
            request.prompt[image.start : image.start + image.num_token] = [number] * image.num_token

    def inputs(self, new: New, ids: np.ndarray) -> dict[str, Any]:
        """The model's arguments for a step whose packed `ids` [T] are padded. In these, images' tokens get their id.

        Raises EngineError if an image cannot be read.
        """
        ids[ids < 0] = self._images.token
        places = np.zeros((3, 1, len(ids)), np.int64)
        rows = np.concatenate([np.asarray(request.positions)[:, a:b] for request, a, b in new], axis=1)
        places[:, 0, : rows.shape[1]] = rows
        given: dict[str, Any] = {"position_ids": torch.from_numpy(places)}
        if shown := list(_shown(new)):
            self._compute({image.digest: image.path for image, _, _ in shown})
            parts = [[output[a:b] for output in self._outputs[image.digest]] for image, a, b in shown]
            tokens, *deeper = zip(*parts, strict=True)
            given["mm_encoder_outputs"] = {"image": SimpleNamespace(pooler_output=tokens, deepstack_features=deeper)}
        return given

    def forbid(self, logits_NV: Tensor) -> None:
        """Keep tokens that stand for images out of responses, as vLLM and the learner do."""
        logits_NV[:, self._unwritten] += BIAS

    def clear(self) -> None:
        """Forget the tower's outputs."""
        self._outputs.clear()
        self._bytes = 0

    def _compute(self, paths: dict[str, str]) -> None:
        """Keep the tower's outputs for images, given by digest and path."""
        if self._bytes > KEPT_BYTES:
            self.clear()
        if not (missing := [digest for digest in paths if digest not in self._outputs]):
            return
        try:
            pixels, grids = zip(*(self._images.processed(paths[digest]) for digest in missing), strict=True)
        except OSError as error:
            raise EngineError(
                f"an image of a prompt cannot be read ({error}); keep the run's folder images/"
            ) from error
        found = self._images.model.get_image_features(torch.cat(pixels), torch.cat(grids), return_dict=True)
        layers = [found.pooler_output, *(getattr(found, "deepstack_features", None) or ())]
        for digest, outputs in zip(missing, zip(*layers, strict=True), strict=True):
            self._outputs[digest] = [output.clone() for output in outputs]  # a view would keep all images of the step
            self._bytes += sum(output.nbytes for output in outputs)


def _shown(new: New) -> Iterator[tuple[Image, int, int]]:
    """(image, start, end) of each image's tokens that belong to a step, in their order."""
    for request, start, end in new:
        for image in request.images:
            a, b = max(start - image.start, 0), min(end - image.start, image.num_token)
            if a < b:
                yield image, a, b
