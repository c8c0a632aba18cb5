"""The pool of desktops, with desktops that do nothing: what it forgets, and whom it keeps waiting."""

from __future__ import annotations

import asyncio
import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from rlanything.domains.osworld.actions import Action
from rlanything.domains.osworld.desktops.client import DesktopFault
from rlanything.domains.osworld.desktops.demonstrations import _mistake
from rlanything.domains.osworld.desktops.generator import generated
from rlanything.domains.osworld.desktops.pool import DesktopPool


class Still:
    """A desktop without programs. `connect` waits until it may go on."""

    guest: Any = None
    ended_by = ""

    def __init__(self) -> None:
        self.alive, self.may_connect = True, asyncio.Event()

    async def boot(self) -> None:
        pass

    async def connect(self) -> None:
        await self.may_connect.wait()

    async def address(self) -> Any:
        return SimpleNamespace()

    async def close(self) -> None:
        self.kill()

    def kill(self) -> None:
        self.alive = False


def test_desktop_that_connects_while_its_pool_is_closed_is_ended_and_not_leased():
    async def run() -> None:
        made: list[Still] = []

        def start() -> Still:
            made.append(Still())
            return made[-1]

        pool = DesktopPool(start, 1)
        leasing = asyncio.create_task(pool.lease())
        while not made:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert pool.num_alive == 1
        pool.close()
        assert not made[0].alive
        made[0].may_connect.set()
        with pytest.raises(DesktopFault, match="was closed"):
            await leasing
        assert pool.num_alive == 0

    asyncio.run(run())


def test_a_look_at_a_desktop_that_takes_long_does_not_stop_the_other_episodes():
    looked = []

    def excess(desktops: list[Any]) -> dict[int, str]:
        looked.append(len(desktops))
        time.sleep(1.0)
        return {0: "too much"}

    async def run() -> tuple[float, Still]:
        made = Still()
        made.may_connect.set()
        pool = DesktopPool(lambda: made, 1, excess=excess)
        await pool.lease()
        longest, last = 0.0, time.monotonic()
        while made.alive:
            await asyncio.sleep(0.01)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        return longest, made

    longest, made = asyncio.run(run())
    assert looked and longest < 0.9 and made.ended_by == "too much"


def test_a_mistake_of_a_demonstration_is_no_step_of_its_script():
    """It would be judged as wrong, and only comes early."""
    for family in generated("train", 60, 0.3):
        scripted = [verifier for verifier in family.verifiers.values() if verifier.solution]
        for verifier in scripted:
            for i, right in enumerate(verifier.solution):
                end = Action(kind="terminate", status="success")
                for seed in range(3):
                    wrong = _mistake(random.Random(seed), verifier.solution, right, scripted)
                    assert wrong not in verifier.solution or (wrong == end and i < len(verifier.solution) - 1)
