"""An environment host that gets the same batch twice, as after a broken connection."""

from __future__ import annotations

import asyncio

import pytest

from rlanything.cluster import hosts
from rlanything.config.schema import Config


class SlowCollector:
    """Plays four episodes; the last one ends when `allowed` is set."""

    allowed: asyncio.Event
    playing = 0

    def __init__(self, *_: object) -> None:
        pass

    async def collect(self, batch, on_end):
        SlowCollector.playing += 1
        try:
            for _ in range(3):
                on_end()
            await SlowCollector.allowed.wait()
            on_end()
            return [batch]
        finally:
            SlowCollector.playing -= 1


def test_a_repeated_batch_is_played_once_and_counted_from_zero(monkeypatch):
    monkeypatch.setattr(hosts, "Collector", SlowCollector)
    monkeypatch.setattr(hosts, "make_domain", lambda config: type("Domain", (), {"prepare": lambda *_: None})())
    monkeypatch.setattr(hosts, "was_restarted", lambda fault: False)
    monkeypatch.setattr(hosts, "ChatModel", lambda *_: None)

    async def run() -> None:
        SlowCollector.allowed = asyncio.Event()
        host = hosts.EnvHost(Config(), [], [])
        engines = {"policy": None}
        host.chats = {"policy": None}
        first = asyncio.create_task(host.collect(7, "batch", engines))
        await asyncio.sleep(0)
        assert await host.ended(7) == 3
        second = asyncio.create_task(host.collect(7, "batch", engines))
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await host.ended(7) == 3 and SlowCollector.playing == 1
        SlowCollector.allowed.set()
        assert await second == ["batch"] and await host.ended(7) == 0

    asyncio.run(run())
