"""Steps a synchronous engine from an asyncio task while it has unanswered requests.

Callers and the engine take turns on one asyncio loop, without threads, so that a run is deterministic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rlanything.processes.watchdog import Watchdog


class Pump:
    """Calls `step` until it returns False. Between two steps the loop runs, so that episodes advance.

    If a step raises, the exception is handed to `fail`, which must fail all unanswered requests. If a step does not
    return, the watchdog ends the process.
    """

    def __init__(self, step: Callable[[], bool], fail: Callable[[Exception], None], watchdog: Watchdog) -> None:
        self._step = step
        self._fail = fail
        self._watchdog = watchdog
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Make sure that the engine steps on the running loop. Call it after every submission."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._guarded_step():
                await asyncio.sleep(0)
        except Exception as error:
            self._fail(error)

    def _guarded_step(self) -> bool:
        with self._watchdog:
            return self._step()
