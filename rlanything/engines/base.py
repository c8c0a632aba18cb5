"""The engine protocol: tokens in, tokens and logprobs out, weights replaced in place.

An engine knows neither tasks nor rewards. Policy, reward model and rewriter are engines by role.
"""

import hashlib
import math
import resource
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from rlanything.errors import ClearError
from rlanything.types import Image


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to sample one request."""

    temperature: float = 1.0
    """0 is greedy."""
    max_tokens: int = 64
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all tokens."""
    stop_token_ids: tuple[int, ...] = ()
    """Stop tokens besides the model's own."""
    seed: int | None = None
    """Makes the request repeatable by itself."""
    session: str = ""
    """Requests of one session share a prefix. An engine with replicas sends them to the same replica."""


def request_seed(*parts: object) -> int:
    """A seed made of the request's purpose, not of its time, so that a resumed run samples the same."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


@dataclass
class Completion:
    """One sampled response."""

    token_ids: list[int]
    """They include the stop token if one was sampled."""
    logprobs: list[float]
    """Of each token under softmax(logits / temperature); under temperature 1 if greedy."""
    stop_reason: str
    """"stop" or "length"."""


@dataclass
class EngineStats:
    """Counters since the engine started."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    """Prompt tokens that were not computed, because the cache held them."""
    generated_tokens: int = 0
    steps: int = 0
    """Forward passes of the model."""
    busy_s: float = 0.0
    """Seconds inside model steps; for vLLM's AsyncLLM, seconds with unanswered requests."""
    own_memory_gb: float = 0.0
    """Peak memory [GiB] of the engine's own processes; 0 if it runs in its caller's."""


def peak_memory_gb() -> float:
    """The largest resident memory that this process has had [GiB]."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class EngineError(ClearError, RuntimeError):
    """The engine cannot serve a request or start. The message says which, and what to do."""


class EngineDead(EngineError):
    """The engine broke and serves no further request. A new one may be started."""


class PromptTooLong(EngineError):
    """A prompt leaves no token of the engine's context for the response. The caller ends the episode as truncated."""


def require_finite(completions: Iterable[Completion]) -> None:
    """Raise EngineError if the model computed no finite logprobs: what was sampled then means nothing."""
    if not all(math.isfinite(sum(c.logprobs)) for c in completions):
        raise EngineError("the model computes no finite logprobs; its weights hold NaN, or overflow in their type")


class Engine(Protocol):
    """An engine as its users see it. All coroutines run on one asyncio loop."""

    max_model_len: int
    """Tokens of a prompt and its response together."""
    version: int
    """Number of the last weights loaded; 0 for those of the model's files."""
    dtype: torch.dtype
    """Of the weights."""

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, n: int = 1, images: Sequence[Image] = ()
    ) -> list[Completion]:
        """Sample `n` responses to one prompt; requests of concurrent callers are batched. A response is cut to what
        fits `max_model_len`. `images` are those that the ids refer to, in their order.

        Raises PromptTooLong if not even one token fits, EngineDead if the engine is dead.
        """

    def load_weights(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace all weights in place (HF parameter names) and drop every cache. No request may be under way."""

    def clear_caches(self) -> None:
        """Forget everything but the weights, as if the engine had just started. No request may be under way."""

    def checksum(self) -> str:
        """A digest of the weights as loaded, comparable with `learner.checksum()`: see `weights/checksum.py`."""

    def sleep(self) -> None:
        """Release what the engine can release (KV cache) while learners work."""

    def wake(self, cache: bool = True) -> None:
        """Undo `sleep` before the next request. If `cache` is false, take back only what loading weights needs."""

    def stats(self) -> EngineStats:
        """Counters since the start."""

    def close(self) -> None:
        """Stop the engine and everything that it started."""
