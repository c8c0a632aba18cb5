"""Chooses the episodes that an engine serves if its KV cache cannot hold all of them.

An episode sends many requests, and each prompt extends the last. If more episodes take turns than the cache holds, each
evicts the keys of others, and every turn prefills its whole history again. The engine therefore serves the oldest
sessions, as many as fit, and the others wait until one of these ends.

Nobody tells the engine that a session has ended. It assumes so after a pause of PATIENCE times the mean pause. Pauses
are counted in the engine's steps, not in seconds, so that a run is repeatable. A prefix that several sessions share
counts for each of them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rlanything.engines.base import Completion

SHARE = 0.9  # of the cache; partly filled blocks take the rest
PATIENCE = 3.0  # [mean pauses] after which a session is taken to have ended
SMOOTHING = 0.05  # weight of a new pause or response in the running mean


@dataclass(slots=True)
class _Session:
    tokens: float = 0.0  # of its last request: prompt and expected responses
    under_way: int = 0
    waiting: int = 0
    last_step: int = 0  # the engine's step at which its last request ended


class Admission:
    """The queue of sessions, oldest first. `capacity` is the cache's size [tokens]."""

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
            if entry in self._queue:  # the caller was cancelled
                self._queue.remove(entry)

    def step(self) -> None:
        """Count a step of the engine. Call it after each one."""
        self._steps += 1
        if self._queue:
            self._wake()

    def clear(self) -> None:
        """Forget all sessions and the means measured on them. No request may be under way."""
        self._sessions: dict[str, _Session] = {}
        self._steps = 0
        self._pause = 1.0
        self._response = 0.0

    def fail(self, error: Exception) -> None:
        """Raise `error` in all waiting callers, because the engine is dead."""
        for _, future in self._queue:
            if not future.done():
                future.set_exception(error)
        self._queue.clear()

    def _wake(self) -> None:
        """Let the waiting requests of the oldest sessions pass, as many sessions as fit."""
        if not self._queue:
            return
        oldest = self._steps - PATIENCE * max(1.0, self._pause)
        self._sessions = {
            name: s for name, s in self._sessions.items() if s.under_way or s.waiting or s.last_step >= oldest
        }
        idle = not any(s.under_way for s in self._sessions.values())
        total, served = 0.0, set[int]()
        for session in self._sessions.values():
            if idle and not session.waiting:  # with the engine idle, no step would ever end its pause
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
