"""The engine protocol: tokens in, tokens and logprobs out, weights replaced in place.

An engine knows neither tasks nor rewards. Policy, reward model and rewriter are engines by role.
"""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rlanything.errors import ClearError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SamplingParams:
    """How to sample one request. Temperature 0 is greedy. `seed` makes a request repeatable by itself. Requests of one
    `session` share a prefix: an engine with replicas keeps them together."""

    temperature: float = 1.0
    max_tokens: int = 64
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    session: str = ""


def request_seed(*parts: object) -> int:
    """A seed that depends on what a request is for, not on when it is made: a resumed run samples the same."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


@dataclass
class Completion:
    """One sampled response.

    `token_ids` includes the stop token if one was sampled. `logprobs[t]` is the log-probability of
    `token_ids[t]` under softmax(logits / temperature) (temperature 1 if greedy). `stop_reason` is "stop" or
    "length".
    """

    token_ids: list[int]
    logprobs: list[float]
    stop_reason: str


@dataclass
class EngineStats:
    """Counters since the engine started. `busy_s` is the time spent inside model steps (by vLLM's
    AsyncLLM: with requests under way), `own_memory_gb` the peak
    memory of the processes that the engine has to itself [GiB]; 0 if it lives in its caller's."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    busy_s: float = 0.0
    own_memory_gb: float = 0.0


def peak_memory_gb() -> float:
    """The largest resident memory that this process has had [GiB]."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class EngineError(ClearError, RuntimeError):
    """The engine could not do what it was asked: the message says which request and what to do."""


class EngineDead(EngineError):
    """The engine broke in the middle of its work and serves nobody any more; a new one may."""


class PromptTooLong(EngineError):
    """A prompt leaves not one token of the engine's context to its response; the caller ends the episode as
    truncated."""


class Engine(Protocol):
    """What rollout, judge and rewrite need. All coroutines run on one asyncio loop."""

    max_model_len: int
    version: int
    dtype: torch.dtype  # of its weights

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, n: int = 1, images: tuple[str, ...] = ()
    ) -> list[Completion]:
        """Sample `n` responses to one prompt; requests of concurrent callers are batched.

        Raises PromptTooLong if len(prompt_ids) + 1 exceeds `max_model_len` (a response is cut to what
        fits), EngineDead if the engine is dead.
        """
        ...

    def load_weights(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace all weights in place (HF parameter names) and drop every cache. No request may be under way."""
        ...

    def clear_caches(self) -> None:
        """Forget everything but the weights, so that what comes is served as by an engine that was just started. No
        request may be under way."""
        ...

    def checksum(self) -> str:
        """A digest of the weights as loaded, comparable with `learner.checksum()`: see `weights/checksum.py`."""
        ...

    def sleep(self) -> None:
        """Release what the engine can release (KV cache) while learners work."""
        ...

    def wake(self, cache: bool = True) -> None:
        """Take it back before the next request; with `cache` false only what new weights need."""
        ...

    def stats(self) -> EngineStats:
        """Counters since the start."""
        ...

    def close(self) -> None:
        """Stop the engine and everything that it started."""
        ...
