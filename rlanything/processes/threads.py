"""A thread of one's own for code that may hang, or that must always run in the same thread."""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonThread:
    """Serves calls one after the other. The process can end while one of them hangs."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """The function's result, once the calls before it are done. Raises what it raises."""
        called: Future[T] = Future()
        called.set_running_or_notify_cancel()  # so that set_result works even if the waiting task was cancelled

        def run() -> None:
            try:
                called.set_result(function(*args))
            except BaseException as error:
                called.set_exception(error)

        self._calls.put(run)
        return await asyncio.wrap_future(called)

    def stop(self) -> None:
        """End the thread after the calls before this one."""
        self._calls.put(None)
