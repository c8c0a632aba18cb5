"""An environment host that gets the same batch twice, as after a broken connection."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from rlanything.algorithm.summary import GroupSummary
from rlanything.cluster import cluster, hosts
from rlanything.config.schema import Config, RolloutConfig
from rlanything.rollout.collect import Batch
from rlanything.rollout.digest import Digest
from rlanything.types import SampleSet, Task


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
            return [digest("q0", 2), digest("q1", 0)]
        finally:
            SlowCollector.playing -= 1


def digest(id: str, num: int) -> Digest:
    """A group of which each learner gets `num` sets."""
    task = GroupSummary(task=Task(id=id, payload={}), num_valid=2, num_solved=1, num_broken=0)

    def sets(role):
        return [
            SampleSet(key=f"{id}/{i}", num=1, tokens=9, tree_tokens=9, samples=f"{role} {id}/{i}") for i in range(num)
        ]

    return Digest(summary=task, sets={role: sets(role) for role in ("policy", "reward")})


@pytest.fixture
def domain(monkeypatch):
    """Hosts have this domain, and collectors that wait."""
    monkeypatch.setattr(hosts, "Collector", SlowCollector)
    monkeypatch.setattr(hosts, "make_domain", lambda config: made)
    monkeypatch.setattr(hosts, "was_restarted", lambda fault: False)
    monkeypatch.setattr(hosts, "ChatModel", lambda *_: None)
    made = SimpleNamespace(prepare=lambda splits: None, ended=[])
    made.close = lambda: made.ended.append(SlowCollector.playing)
    return made


class Episodes(SlowCollector):
    """Plays two episodes, of which one takes its time to end, beside something that goes on by itself."""

    async def collect(self, batch, on_end):
        self.beside = asyncio.create_task(self.episode(0.0))
        await asyncio.gather(self.episode(0.0), self.episode(0.3))

    async def episode(self, end_s):
        SlowCollector.playing += 1
        try:
            await SlowCollector.allowed.wait()
        finally:
            await asyncio.sleep(end_s)
            SlowCollector.playing -= 1


def test_a_host_that_is_closed_ends_all_that_goes_on_first_and_then_its_domain(domain, monkeypatch):
    monkeypatch.setattr(hosts, "Collector", Episodes)

    async def run() -> None:
        SlowCollector.allowed = asyncio.Event()
        host = hosts.EnvHost(Config(), [], [])
        batch = Batch(tasks=[Task(id="q", payload={})], num=1, seed="", rollout=RolloutConfig())
        host.chats = {"policy": None}
        playing = asyncio.create_task(host.collect(7, batch, {"policy": None}))
        await asyncio.sleep(0.05)
        assert SlowCollector.playing == 3
        await host.close()
        assert playing.cancelled() and domain.ended == [0]

    asyncio.run(run())


def test_a_cluster_ends_its_hosts_before_their_processes_and_these_in_any_case(monkeypatch):
    ended = []

    def close_hosts(of):
        ended.append(of)
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "close_hosts", close_hosts)
    made = object.__new__(cluster.Cluster)
    made._health = SimpleNamespace(close=lambda: None)
    made._hosts, made.runtime = ["host"], SimpleNamespace(close=lambda: ended.append("processes"))
    with pytest.raises(KeyboardInterrupt):
        made.close()
    assert ended == [["host"], "processes"]


def test_a_repeated_batch_is_played_once_and_counted_from_zero(domain):
    async def run() -> None:
        SlowCollector.allowed = asyncio.Event()
        host = hosts.EnvHost(Config(), [], [])
        engines, tasks = {"policy": None}, [Task(id=f"q{i}", payload={}) for i in range(2)]
        batch = Batch(tasks=tasks, num=2, seed="", rollout=RolloutConfig())
        host.chats = {"policy": None}
        first = asyncio.create_task(host.collect(7, batch, engines))
        await asyncio.sleep(0)
        assert await host.ended(7) == 3
        second = asyncio.create_task(host.collect(7, batch, engines))
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await host.ended(7) == 3 and SlowCollector.playing == 1
        SlowCollector.allowed.set()
        stripped, *samples = await second
        assert await host.ended(7) == 0 and 1 + len(samples) == hosts.num_result(batch)
        assert samples[:5] == ["policy q0/0", "policy q0/1", "reward q0/0", "reward q0/1", None]
        assert all(one.samples is None for d in stripped for of_role in d.sets.values() for one in of_role)
        assert hosts.with_references(stripped, samples) == [digest("q0", 2), digest("q1", 0)]

    asyncio.run(run())


def test_many_hosts_report_less_often_so_that_the_driver_has_time_for_the_rest():
    assert hosts.report_s(1) == hosts.report_s(16) == hosts.REPORT_S
    assert 128 / hosts.report_s(128) == 512 / hosts.report_s(512) == hosts.NUM_REPORT
