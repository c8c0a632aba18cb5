"""Coroutines that are run from code that is none."""

import asyncio

import pytest

from rlanything.processes.coroutines import run_coroutine


class Episodes:
    """A result whose text would take seconds."""

    written = 0

    def __repr__(self) -> str:
        self.written += 1
        return "episodes"


async def episodes(found: Episodes | None = None) -> Episodes:
    if found is None:
        raise ValueError("no episode")
    return found


def test_asyncio_makes_no_text_of_what_a_step_returned():
    found = Episodes()
    with asyncio.Runner() as runner:
        assert run_coroutine(episodes(found), runner) is found
        assert run_coroutine(episodes(found), runner) is found
    assert run_coroutine(episodes(found)) is found
    assert found.written == 0
    asyncio.run(episodes(found))
    assert found.written > 0  # if not, Python has mended it, and `run_coroutine` can go


def test_an_error_of_the_coroutine_is_raised():
    with pytest.raises(ValueError, match="no episode"):
        run_coroutine(episodes())
