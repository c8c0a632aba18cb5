"""Tells whether a model reads images in a way that this project knows."""

from typing import Any

BIAS = -100.0  # added to the logits of image tokens, in engine and learner alike: no model writes one


def reads_images(config: Any) -> bool:
    """True if a model, by its transformers config, reads an image as copies of one token on a grid, as Qwen's do."""
    vision = getattr(config, "vision_config", None)
    return getattr(config, "image_token_id", None) is not None and hasattr(vision, "spatial_merge_size")


def unwritten_ids(config: Any) -> list[int]:
    """The tokens that stand for images and videos. In a response one would be taken for an image that is not there."""
    ids = (getattr(config, name, None) for name in ("image_token_id", "video_token_id"))
    return [i for i in ids if i is not None] if reads_images(config) else []
