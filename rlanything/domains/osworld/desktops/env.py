"""One episode on a real desktop."""

import asyncio
import hashlib
import json
import time
from collections.abc import Sequence

from rlanything.domains.base import Env, Observation
from rlanything.domains.images import ImageStore
from rlanything.domains.osworld.actions import LAST, Action, read_arguments
from rlanything.domains.osworld.desktops.client import DesktopFault
from rlanything.domains.osworld.desktops.oracle import Oracle
from rlanything.domains.osworld.desktops.pool import Desktop, DesktopPool
from rlanything.domains.osworld.desktops.setup import set_up, wait_until_drawn
from rlanything.domains.osworld.desktops.tasks import Family, Verifier
from rlanything.domains.osworld.desktops.verify import share
from rlanything.domains.osworld.options import OsworldOptions
from rlanything.types import Score

NEAR = LAST * 0.02  # a click this near to the script's is the script's


class DesktopEnv(Env):
    """Actions are the JSON of `Action.to_json`; None is a response that holds none, and changes nothing.

    What breaks (boot, set-up, screenshot, evaluator) is raised as DesktopFault, and the episode is played anew. If the
    agent ended its desktop, by using too much of it or by killing what runs there, the episode is over and unsolved.
    """

    def __init__(
        self,
        pool: DesktopPool,
        oracle: Oracle,
        family: Family,
        verifier: Verifier,
        images: ImageStore,
        options: OsworldOptions,
    ) -> None:
        self.pool, self.oracle, self.family, self.verifier = pool, oracle, family, verifier
        self.images, self.options = images, options
        self.desktop: Desktop | None = None
        self.leased = False  # a desktop could be had, so what breaks is not its boot
        self.shown = ""
        self.said: str | None = None  # the status with which the agent ended the episode
        self.script = Script(verifier.solution)
        self.state = ""

    async def reset(self) -> Observation:
        self.desktop, self.leased = await self.pool.lease(), True
        try:
            async with asyncio.timeout(self.options.setup_s):
                if self.family.oracle_sets_up:
                    await self.oracle.set_up(self.family, await self.desktop.address(), self.desktop.guest.screen)
                    await wait_until_drawn(self.desktop.guest, self.family.config)
                else:
                    await set_up(self.desktop.guest, self.family.config)
        except TimeoutError:
            raise DesktopFault(
                f"the set-up took longer than dataset.options.setup_s={self.options.setup_s:g} s"
            ) from None
        return await self._seen()

    async def step(self, action: str | None) -> Observation:
        assert self.desktop
        if action is None:
            return self._same(label=-1)
        read = read_arguments(json.loads(action))
        if read.kind == "terminate":
            self.said = read.status
        on_script = self.script.take(read)
        try:
            if self.said:
                return self._same(invalid=False, done=True, label=await self._end_label())
            started = time.perf_counter()
            await self.desktop.guest.perform(read)
            action_s = time.perf_counter() - started
            return await self._seen(label=1 if on_script else None, waited=read.kind == "wait", action=action_s)
        except DesktopFault:
            if not await self._ended():
                raise
            return self._same(
                invalid=False, done=True, label=-1, text=f"The desktop was ended: {self.desktop.ended_by}."
            )

    async def score(self, last: Observation) -> Score:
        """The state decides, however the episode ended. Only saying so solves a task that cannot be done."""
        assert self.desktop
        if await self._ended(0.0):
            return Score(success=False, reward=0.0)
        if not self.verifier.feasible or self.said == "failure":
            right = not self.verifier.feasible and self.said == "failure"
            return Score(success=right, reward=float(right))
        try:
            reward = await self._share()
        except DesktopFault:
            if not await self._ended():
                raise
            reward = 0.0
        return Score(success=reward == 1.0, reward=reward)

    async def close(self) -> None:
        if self.desktop is not None:
            desktop, self.desktop = self.desktop, None
            await self.pool.release(desktop)

    async def _ended(self, wait_s: float = 3.0) -> bool:
        """True if the desktop is over because of what the agent did: it used too much, or ended the programs in it.

        A fault may be seen before the pool has looked at what the desktop uses, so that is done first. It may also be
        seen before the end of the processes is, or before a desktop whose screen takes no connection ends itself
        (guest/limits.py), hence `wait_s`. If it is 0, only what is known counts.
        """
        assert self.desktop
        if wait_s:
            await self.pool.end_excessive([self.desktop])
        until = time.monotonic() + wait_s
        while self.desktop.alive and time.monotonic() < until:
            await asyncio.sleep(0.05)
        if not self.desktop.ended_by and not self.desktop.alive:
            self.desktop.ended_by = "its programs were ended"
        return bool(self.desktop.ended_by)

    async def _share(self) -> float:
        assert self.desktop
        await self.desktop.guest.screenshot(self.options.settle_s)  # evaluators save files with keys of their own
        if (checks := self.verifier.checks) is not None:
            return await share(self.desktop.guest, checks)
        address, screen = await self.desktop.address(), self.desktop.guest.screen
        return await self.oracle.evaluate(self.verifier, self.family, address, screen)

    async def _end_label(self) -> int | None:
        """An end is right if the task is solved. OSWorld's evaluators may change the desktop: they are asked once."""
        if not self.verifier.feasible or self.said == "failure":
            return 1 if self.said == "failure" and not self.verifier.feasible else -1
        if self.verifier.checks is None:
            return None
        return 1 if await self._share() == 1.0 else -1

    async def _seen(self, label: int | None = None, waited: bool = True, **seconds: float) -> Observation:
        assert self.desktop
        started, guest = time.perf_counter(), self.desktop.guest
        content = await guest.screenshot(self.options.settle_s)
        seconds |= {"settle": guest.settled_s, "screenshot": time.perf_counter() - started - guest.settled_s}
        before, self.shown = self.shown, self.images.put(content)
        results = () if waited else ("unchanged" if before == self.shown else "ok",)
        self.state = hashlib.blake2b(content, digest_size=8).hexdigest()
        return Observation("", images=(self.shown,), label=label, results=results, state=self.state, seconds=seconds)

    def _same(self, *, text: str = "", done: bool = False, invalid: bool = True, label: int | None) -> Observation:
        """The answer to what changed nothing."""
        return Observation(text, images=(self.shown,), done=done, invalid=invalid, label=label, state=self.state)


class Script:
    """How far an episode has followed a scripted solution. Off the script, nothing is known of a step."""

    def __init__(self, solution: Sequence[Action]) -> None:
        self.left: list[Action] | None = list(solution) or None

    def take(self, action: Action) -> bool:
        """True if the action is the script's next one."""
        if self.left and _same_action(action, self.left[0]):
            self.left.pop(0)
            return True
        if action.kind not in ("wait", "mouse_move"):
            self.left = None
        return False


def _same_action(a: Action, b: Action) -> bool:
    near = a.coordinate == b.coordinate or (
        a.coordinate is not None
        and b.coordinate is not None
        and all(abs(p - q) <= NEAR for p, q in zip(a.coordinate, b.coordinate, strict=True))
    )
    return near and (a.kind, a.keys, a.text, a.pixels, a.status) == (b.kind, b.keys, b.text, b.pixels, b.status)
