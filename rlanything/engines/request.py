"""Checks and limits that all engines apply to a request, so that they refuse and stop alike."""

from __future__ import annotations

import numpy as np

from rlanything.engines.base import EngineError, PromptTooLong, SamplingParams

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def response_limit(
    prompt_ids: list[int], sampling: SamplingParams, n: int, images: tuple[str, ...], max_model_len: int
) -> int:
    """The request's max_tokens, cut to what fits the context.

    Raises PromptTooLong if not even one token fits, EngineError for images (neither engine reads them) and
    for an empty prompt, n < 1 or max_tokens < 1.
    """
    if images or not prompt_ids or n < 1 or sampling.max_tokens < 1:
        raise EngineError(
            f"request refused: {len(images)} images, {len(prompt_ids)} prompt tokens, n={n}, max_tokens="
            f"{sampling.max_tokens}; expected no images, and at least 1 of each of the others"
        )
    if len(prompt_ids) + 1 > max_model_len:
        raise PromptTooLong(
            f"a prompt of {len(prompt_ids)} tokens leaves no room in max_model_len={max_model_len}: end the episode or "
            "raise engine.max_model_len"
        )
    return min(sampling.max_tokens, max_model_len - len(prompt_ids))


def token_ids(value: int | list[int] | None) -> set[int]:
    """The set of a model configuration's `eos_token_id`, which may be one id, a list or None."""
    return set() if value is None else {value} if isinstance(value, int) else set(value)


def mix(x: np.ndarray) -> np.ndarray:
    """splitmix64's output function: a well-mixed bijection of uint64 [N]."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
