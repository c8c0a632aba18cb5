"""Which episodes an engine serves if its KV cache cannot hold all of them.

An episode asks again and again, each prompt an extension of the last. Where more episodes take turns than the cache
holds, each evicts the others' keys, and every turn prefills its whole history anew. So the oldest sessions go first, as
many as fit, and the others wait until one of these ends.

That a session ended is nowhere said: it is believed once it has paused longer than sessions do. Pauses are counted in
the engine's steps, never in seconds, so a run repeats itself. What sessions share of their prompts counts for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rlanything.engines.base import Completion

SHARE = 0.9  # of the cache: blocks that are partly filled take the rest
PATIENCE = 3.0  # mean pauses after which a session has ended
SMOOTHING = 0.05  # of a new pause or response in the mean


@dataclass(slots=True)
class _Session:
    tokens: float = 0.0  # of its last request, prompt and expected responses
    under_way: int = 0
    waiting: int = 0
    last_step: int = 0  # the engine's when its last request ended


class Admission:
    """Sessions by age. `capacity` is the cache's size [tokens]."""

    def __init__(self, capacity: int) -> None:
        self._room = capacity * SHARE
        self._queue: list[tuple[_Session, asyncio.Future[None]]] = []
        self.clear()

    async def serve(
        self, name: str, prompt: int, n: int, generate: Callable[[], Awaitable[list[Completion]]]
    ) -> list[Completion]:
        """Wait until it is this session's turn, then return what `generate` does. `prompt` is its length, `n` the
        number of responses. A request without a session never waits."""
        if not name:
            return await generate()
        session = self._sessions.setdefault(name, _Session())
        if session.last_step and not session.under_way:
            self._pause += SMOOTHING * (self._steps - session.last_step - self._pause)
        session.tokens = prompt + n * self._response
        if self._queue or sum(s.tokens for s in self._sessions.values()) > self._room:
            await self._wait(session)
        session.under_way += 1
        try:
            completions = await generate()
        finally:
            session.under_way -= 1
            session.last_step = self._steps
            self._wake()
        for completion in completions:
            self._response += SMOOTHING * (len(completion.token_ids) - self._response)
        return completions

    async def _wait(self, session: _Session) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (session, future)
        session.waiting += 1
        self._queue.append(entry)
        self._wake()
        try:
            await future
        finally:
            session.waiting -= 1
            if entry in self._queue:  # its caller gave up
                self._queue.remove(entry)

    def step(self) -> None:
        """To be called after each step of the engine."""
        self._steps += 1
        if self._queue:
            self._wake()

    def clear(self) -> None:
        """Forget all sessions, as the cache forgets them, and what was learnt of them. No request may be under way."""
        self._sessions: dict[str, _Session] = {}
        self._steps = 0
        self._pause = 1.0
        self._response = 0.0

    def fail(self, error: Exception) -> None:
        """Raise `error` to all who wait: the engine is dead."""
        for _, future in self._queue:
            if not future.done():
                future.set_exception(error)
        self._queue.clear()

    def _wake(self) -> None:
        """Let those pass who are among the oldest that fit; all others wait."""
        if not self._queue:
            return
        oldest = self._steps - PATIENCE * max(1.0, self._pause)
        self._sessions = {
            name: s for name, s in self._sessions.items() if s.under_way or s.waiting or s.last_step >= oldest
        }
        idle = not any(s.under_way for s in self._sessions.values())
        total, served = 0.0, set[int]()
        for session in self._sessions.values():
            if idle and not session.waiting:  # no step would come that ends its pause
                continue
            total += session.tokens
            if total > self._room and served:
                break
            served.add(id(session))
        passing = [entry for entry in self._queue if id(entry[0]) in served]
        self._queue = [entry for entry in self._queue if id(entry[0]) not in served]
        for _, future in passing:
            if not future.done():
                future.set_result(None)
