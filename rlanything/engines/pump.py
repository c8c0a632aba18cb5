"""Turns a synchronous engine's steps into coroutines: one task steps the engine while requests are under way.

No threads: callers and the engine share one asyncio loop and take turns, so a run is deterministic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rlanything.processes.watchdog import Watchdog


class Pump:
    """Calls `step` until it returns False; the loop runs between two steps so that episodes advance.

    An exception in a step is handed to `fail`, which must fail every request under way; a step that does not return
    ends the process (see Watchdog).
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
