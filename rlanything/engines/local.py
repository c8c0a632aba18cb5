"""What the engines of this machine share: checks of a request, seeds, the queue of sessions, and the stepping loop."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from rlanything.config.schema import EngineConfig
from rlanything.engines.admission import Admission
from rlanything.engines.base import (
    Completion,
    Engine,
    EngineDead,
    EngineError,
    EngineStats,
    PromptTooLong,
    SamplingParams,
)
from rlanything.processes.watchdog import Watchdog
from rlanything.types import Image

GIB = 2**30
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(eq=False, slots=True)
class Request:
    """One call of `generate`."""

    number: int
    prompt: list[int]
    sampling: SamplingParams
    n: int
    seed: int
    """The sampling's seed, or one that the engine drew."""
    max_tokens: int
    """The sampling's limit, cut to what fits the context."""
    images: Sequence[Image] = ()
    """The images that the prompt refers to."""
    positions: np.ndarray | None = None
    """Time, row and column of each token of prompt and longest response [3, T]; only a model of images in the small
    engine needs them."""
    completions: dict[int, Completion] = field(default_factory=dict)
    """Samples that have ended, by index; only the small engine ends them one by one."""


class LocalEngine(Engine):
    """An `Engine` that computes on this machine. Requests without a seed draw one from `seed`, in order of submission.

    `log_path` gets the stacks of all threads if the engine hangs.
    """

    _admission: Admission

    def __init__(self, config: EngineConfig, dtype: torch.dtype, seed: int, log_path: Path) -> None:
        self.max_model_len, self.max_images = config.max_model_len, config.max_images
        self.dtype = dtype
        self.version = 0
        self._seeds = np.random.default_rng(seed)
        self._stats = EngineStats()
        self._error: Exception | None = None
        self._submitted = 0
        self._watchdog = Watchdog(config.step_timeout_s, log_path)

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, n: int = 1, images: Sequence[Image] = ()
    ) -> list[Completion]:
        self._require_alive()
        if not prompt_ids or n < 1 or sampling.max_tokens < 1:
            raise EngineError(
                f"request refused: {len(prompt_ids)} prompt tokens, n={n}, max_tokens={sampling.max_tokens}; expected "
                "at least 1 of each"
            )
        if len(images) > self.max_images:
            raise PromptTooLong(
                f"a prompt has {len(images)} images, more than max_images={self.max_images}: end the episode or raise "
                "engine.max_images"
            )
        room = self.max_model_len - len(prompt_ids)
        if room < 1:
            raise PromptTooLong(
                f"a prompt of {len(prompt_ids)} tokens leaves no room in max_model_len={self.max_model_len}: end the "
                "episode or raise engine.max_model_len"
            )
        seed = sampling.seed if sampling.seed is not None else int(self._seeds.integers(2**63))
        request = Request(self._submitted, prompt_ids, sampling, n, seed, min(sampling.max_tokens, room), images)
        self._submitted += 1
        return await self._admitted(request)

    async def _admitted(self, request: Request) -> list[Completion]:
        """Compute the request once it is its session's turn."""
        return await self._admission.serve(
            request.sampling.session, len(request.prompt), request.n, lambda: self._compute(request)
        )

    def load_weights(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._require_idle("load_weights")
        try:
            self._load(tensors)
            self.clear_caches()
        except Exception as error:  # half of the weights may be old
            self._error = error
            raise
        self.version = version

    def clear_caches(self) -> None:
        self._require_idle("clear_caches")
        self._reset_caches()
        self._admission.clear()

    def stats(self) -> EngineStats:
        """Counters since the start. The prompt of a request counts once, whatever its n."""
        return self._stats

    def _require_alive(self) -> None:
        if self._error is not None:
            raise EngineDead(f"the engine is dead ({self._error!r}); start a new one") from self._error

    def _require_idle(self, what: str) -> None:
        if count := self._under_way():
            raise EngineError(f"{what}: {count} requests are under way; wait for them first")
        self._require_alive()

    @abstractmethod
    def _compute(self, request: Request) -> Awaitable[list[Completion]]:
        """Begin with a request. Returns its completions when awaited."""

    @abstractmethod
    def _under_way(self) -> int:
        """Number of requests that have no answer yet."""

    @abstractmethod
    def _load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace all weights."""

    @abstractmethod
    def _reset_caches(self) -> None:
        """Empty all caches of the model's computations."""


class SteppedEngine(LocalEngine):
    """An engine that an asyncio task steps while there are unanswered requests.

    Callers and engine take turns on one asyncio loop, without threads, so that a run is deterministic. If a step
    raises, all unanswered requests fail. If it does not return, the watchdog ends the process.
    """

    def __init__(self, config: EngineConfig, dtype: torch.dtype, seed: int, log_path: Path) -> None:
        super().__init__(config, dtype, seed, log_path)
        self._futures: dict[int, asyncio.Future[list[Completion]]] = {}  # by the request's number
        self._stepping: asyncio.Task[None] | None = None

    def _compute(self, request: Request) -> asyncio.Future[list[Completion]]:
        loop = asyncio.get_running_loop()
        self._submit(request)
        self._futures[request.number] = future = loop.create_future()
        if self._stepping is None or self._stepping.done():
            self._stepping = loop.create_task(self._run())
        return future

    async def _run(self) -> None:
        try:
            while self._guarded_step():
                await asyncio.sleep(0)
        except Exception as error:
            self._fail(error)

    def _guarded_step(self) -> bool:
        """Step once if there is anything to do. Returns False once no request is left."""
        with self._watchdog:
            if not self._under_way():
                return False
            started = time.perf_counter()
            for number, completions in self._step():
                self._futures.pop(number).set_result(completions)
            self._stats.steps += 1
            self._stats.busy_s += time.perf_counter() - started
            self._admission.step()
            return bool(self._futures)

    def _under_way(self) -> int:
        if cancelled := [number for number, future in self._futures.items() if future.done()]:
            self._abort(cancelled)
            for number in cancelled:
                del self._futures[number]
        return len(self._futures)

    def _fail(self, error: Exception) -> None:
        """Answer all requests with the error, and refuse further ones."""
        self._error = error
        for future in self._futures.values():
            if not future.done():
                future.set_exception(EngineDead(f"the engine died: {error!r}"))
        self._futures.clear()
        self._admission.fail(EngineDead(f"the engine died: {error!r}"))

    @abstractmethod
    def _submit(self, request: Request) -> None:
        """Add a request to the batch. Raises EngineError if it can never be served."""

    @abstractmethod
    def _abort(self, numbers: list[int]) -> None:
        """Take requests, whose callers were cancelled, out of the batch."""

    @abstractmethod
    def _step(self) -> Iterable[tuple[int, list[Completion]]]:
        """Make one forward pass. Returns (number, completions) of each request that has ended."""


def token_ids(value: int | list[int] | None) -> set[int]:
    """The set of a model configuration's `eos_token_id`, which may be one id, a list or None."""
    return set() if value is None else {value} if isinstance(value, int) else set(value)


def mix(x: np.ndarray) -> np.ndarray:
    """splitmix64's output function: a well-mixed bijection of uint64 [N]."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
