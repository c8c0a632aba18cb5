"""Images as token ids: how many tokens stand for one, and where they lie in a prompt.

A chat template writes one placeholder for an image. The model reads as many copies of it as the image has tokens, a
grid of rows and columns. The model's own image processor says how large the grid is.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image as Pictures
from transformers import AutoConfig, AutoImageProcessor

from rlanything.config.schema import ModelConfig
from rlanything.engines.template import ChatError
from rlanything.types import Image, Prompt
from rlanything.weights.images import reads_images

MAX_FILES = 65536  # files whose digest and size are remembered


class ImageReader:
    """Turns image files into tokens, for one model that reads images.

    `token` is the placeholder's text and `token_id` its id. Raises ChatError if the model has no image processor.
    """

    def __init__(self, model: ModelConfig, config: Any, tokenizer: Any) -> None:
        self._name = model.path
        self.token_id: int = config.image_token_id
        self.token: str = tokenizer.convert_ids_to_tokens(self.token_id)
        self._merge: int = config.vision_config.spatial_merge_size
        try:
            self._processor: Any = AutoImageProcessor.from_pretrained(
                model.path, trust_remote_code=model.trust_remote_code
            )
        except Exception as error:  # each processor has its own checks
            why = str(error).partition("\n")[0]
            raise ChatError(
                f"model {model.path}: it reads images, but no image processor could be loaded ({why}); expected "
                "preprocessor_config.json beside config.json"
            ) from error
        self._grid = lru_cache(None)(self._processed)
        self._file = lru_cache(MAX_FILES)(_digest_and_size)

    def placed(self, ids: Sequence[int], paths: Sequence[str]) -> Prompt:
        """A prompt from ids in which one placeholder stands for each image.

        Raises ChatError if a file is no image that the model can read, or if there are more or fewer placeholders than
        files, as where a chat template leaves images out.
        """
        if (found := sum(token == self.token_id for token in ids)) != len(paths):
            raise ChatError(
                f"model {self._name}: its chat template writes {found} times {self.token} for {len(paths)} images; use "
                "the chat template that belongs to the model"
            )
        grown: list[int] = []
        images: list[Image] = []
        left = iter(paths)
        for token in ids:
            if token != self.token_id:
                grown.append(token)
                continue
            path = next(left)
            digest, size = self._file(path)
            try:
                rows, columns = self._grid(size)
            except ValueError as error:
                raise ChatError(f"{path}: the model cannot read an image of {size[0]} x {size[1]} ({error})") from error
            images.append(Image(path=path, digest=digest, start=len(grown), rows=rows, columns=columns))
            grown += [token] * (rows * columns)
        return Prompt(ids=grown, images=tuple(images))

    def num_tokens(self, size: tuple[int, int]) -> int:
        """Tokens of an image of `size` (width, height) [pixels]. Raises ChatError if the model cannot read it."""
        try:
            rows, columns = self._grid(size)
        except ValueError as error:
            raise ChatError(f"the model cannot read an image of {size[0]} x {size[1]} ({error})") from error
        return rows * columns

    def _processed(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of tokens for an image of `size` (width, height): the processor resizes a blank one."""
        [[_, rows, columns]] = self._processor(images=[Pictures.new("RGB", size)])["image_grid_thw"]
        return int(rows) // self._merge, int(columns) // self._merge


def image_reader(model: ModelConfig, tokenizer: Any) -> ImageReader | None:
    """The reader of a model that reads images, else None. Raises as ImageReader does."""
    try:
        config = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError):  # a folder that holds a tokenizer alone
        return None
    return ImageReader(model, config, tokenizer) if reads_images(config) else None


def _digest_and_size(path: str) -> tuple[str, tuple[int, int]]:
    try:
        with Pictures.open(path) as picture:
            size = picture.size
            picture.verify()  # finds a PNG file that is cut, without decoding it
            return hashlib.sha256(Path(path).read_bytes()).hexdigest(), size
    except (OSError, SyntaxError) as error:  # Pillow calls a broken PNG file a SyntaxError
        raise ChatError(f"{path}: cannot be read as an image ({error})") from error
