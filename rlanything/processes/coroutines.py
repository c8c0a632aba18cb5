"""Coroutines, run from code that is none."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_coroutine(main: Coroutine[Any, Any, T], runner: asyncio.Runner | None = None) -> T:
    """The coroutine's result, as `asyncio.run` gives it, or the runner's own `run`.

    When a task has finished, asyncio asks whether it still handles Ctrl-C. `signal.getsignal` then writes the `repr` of
    the handler, which holds the task and all that it returned (CPython 3.11). That of a step's episodes is long.
    The task therefore returns nothing.
    """
    found: list[T] = []

    async def keep() -> None:
        found.append(await main)

    (runner.run if runner else asyncio.run)(keep())
    return found[0]
