"""A pool of desktops: leases, spares that boot while others act, limits, and an end that leaves nothing."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from rlanything.domains.osworld.desktops.client import DesktopFault, Guest
from rlanything.domains.osworld.desktops.forwarding import Address

logger = logging.getLogger(__name__)
WATCH_S = 0.5  # between two looks at what desktops use
CLOSED = "the pool of desktops was closed"


class Desktop(Protocol):
    """One desktop of any backend, which serves one episode."""

    guest: Guest
    ended_by: str
    """Why the pool ended it, if it did."""

    @property
    def alive(self) -> bool: ...

    async def boot(self) -> None: ...

    async def connect(self) -> None: ...

    async def address(self) -> Address: ...

    async def close(self) -> None: ...

    def kill(self) -> None: ...


class DesktopPool:
    """Leases at most `size` desktops at once. A released desktop is never used again."""

    def __init__(
        self,
        start: Callable[[], Desktop],
        size: int,
        spares: int = 0,
        excess: Callable[[Sequence[Desktop]], dict[int, str]] | None = None,
    ) -> None:
        """`start` makes a desktop, which `boot` makes ready; `spares` more boot than are leased. `excess` tells which
        desktops of a list use more than they may, and what; they are ended."""
        self._start, self.size, self.spares, self._excess = start, size, spares, excess
        self._booting_desktops: list[Desktop] = []
        self._ready: list[Desktop] = []
        self._connecting: list[Desktop] = []
        self._leased: list[Desktop] = []
        self._booting: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._free: asyncio.Semaphore
        self._watch: asyncio.Task[None] | None = None
        self._closed = False

    async def lease(self) -> Desktop:
        """A fresh desktop, as soon as one may be had. Raises DesktopFault if it does not boot."""
        self._adopt_loop()
        await self._free.acquire()
        try:
            desktop = await self._take()
        except BaseException:
            self._free.release()
            raise
        self._leased.append(desktop)
        self._refill()
        return desktop

    async def release(self, desktop: Desktop) -> None:
        """End a leased desktop."""
        try:
            await desktop.close()
        finally:
            if desktop in self._leased:  # `close` forgets them all
                self._leased.remove(desktop)
            self._free.release()

    async def end_excessive(self, desktops: Sequence[Desktop]) -> None:
        """End those of these desktops that use more than they may."""
        if self._excess is None:
            return
        # An agent can make a look take long: other episodes go on meanwhile.
        for i, why in (await asyncio.to_thread(self._excess, desktops)).items():
            desktops[i].ended_by = desktops[i].ended_by or why
            desktops[i].kill()

    @property
    def num_alive(self) -> int:
        """Desktops that are leased, ready or booting."""
        return len(self._booting_desktops) + sum(d.alive for d in (*self._ready, *self._connecting, *self._leased))

    def close(self) -> None:
        """End all desktops."""
        self._closed = True
        for desktop in (*self._booting_desktops, *self._ready, *self._connecting, *self._leased):
            desktop.kill()
        self._ready, self._leased = [], []

    def _adopt_loop(self) -> None:
        """Every batch of episodes has an event loop of its own; desktops outlive it, what waits does not."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._free, self._booting = loop, asyncio.Semaphore(self.size), set()
            self._watch = loop.create_task(self._watched()) if self._excess else None

    async def _take(self) -> Desktop:
        while self._booting and not self._ready:
            await asyncio.wait(self._booting, return_when=asyncio.FIRST_COMPLETED)
        while self._ready:
            desktop = self._ready.pop(0)
            if desktop.alive:
                break
            desktop.kill()
        else:
            desktop = await self._booted()
        self._connecting.append(desktop)
        try:
            await desktop.connect()
            if self._closed:
                raise DesktopFault(CLOSED)
        except BaseException:
            await desktop.close()
            raise
        finally:
            self._connecting.remove(desktop)
        return desktop

    async def _booted(self) -> Desktop:
        desktop = self._start()
        self._booting_desktops.append(desktop)
        try:
            if self._closed:
                raise DesktopFault(CLOSED)
            await desktop.boot()
        except BaseException:
            desktop.kill()
            raise
        finally:
            self._booting_desktops.remove(desktop)
        return desktop

    def _refill(self) -> None:
        for _ in range(self.spares - len(self._ready) - len(self._booting)):
            task = asyncio.get_running_loop().create_task(self._spare())
            self._booting.add(task)
            task.add_done_callback(self._booting.discard)

    async def _spare(self) -> None:
        try:
            self._ready.append(await self._booted())
        except DesktopFault as fault:  # whoever needs a desktop tries again, and hears of it
            if not self._closed:
                logger.warning("a spare desktop: %s", fault)

    async def _watched(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            if watched := list(self._leased):
                await self.end_excessive(watched)
