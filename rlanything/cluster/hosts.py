"""Environment hosts: processes that hold many episodes each, and the collector that spreads a batch over them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ray.exceptions import RayTaskError

from rlanything.chat import Chat, ChatModel
from rlanything.cluster.engines import ReplicatedEngine
from rlanything.cluster.placement import Slot
from rlanything.cluster.runtime import ACTOR_LOST, Runtime, cause, unwrapped
from rlanything.collect import Batch, Collector
from rlanything.config import Config
from rlanything.domains.registry import make_domain
from rlanything.engines.base import EngineError
from rlanything.types import Group

REPORT_S = 0.5  # between two looks at how far the hosts are


class EnvHost:
    """A Ray actor: plays and judges its share of every batch."""

    def __init__(self, config: Config, splits: Sequence[str], engines: Mapping[str, ReplicatedEngine]) -> None:
        domain = make_domain(config)
        for split in splits:
            domain.tasks(split)  # read now: a task names its game
        models = {role: ChatModel(engine, Chat(getattr(config.model, role))) for role, engine in engines.items()}
        self._collector = Collector(domain, models["policy"], models.get("reward"), config.reward)
        self._ended = 0

    async def collect(self, batch: Batch, versions: Mapping[str, int]) -> list[Group]:
        """See `Collector.collect`."""
        for role, version in versions.items():
            model = self._collector.policy if role == "policy" else self._collector.reward
            if model is not None:
                model.engine.version = version
        return await self._collector.collect(batch, self._count)

    async def ended(self) -> int:
        """Episodes since the start."""
        return self._ended

    def _count(self) -> None:
        self._ended += 1


class HostCollector:
    """Spreads batches over hosts; the share of a host that dies is played anew by the one that Ray starts for it."""

    def __init__(
        self,
        runtime: Runtime,
        slots: Sequence[Slot],
        config: Config,
        splits: Sequence[str],
        engines: Mapping[str, ReplicatedEngine],
    ) -> None:
        self.engines = {role: engine for role, engine in engines.items() if role in ("policy", "reward")}
        self.num_restart = config.cluster.num_restart
        self.hosts = [
            runtime.start(
                EnvHost, slot, config, splits, self.engines, max_restarts=self.num_restart, max_concurrency=1000
            )
            for slot in slots
        ]

    async def collect(self, batch: Batch, on_end: Callable[[], None]) -> list[Group]:
        """See `Collector.collect`. Episodes under way at once are shared out evenly too."""
        num = len(self.hosts)
        rollout = replace(batch.rollout, max_concurrent=-(-batch.rollout.max_concurrent // num))
        shares = [replace(batch, tasks=list(batch.tasks[i::num]), rollout=rollout) for i in range(num)]
        parts = await asyncio.gather(
            *(self._share(host, share, on_end) for host, share in zip(self.hosts, shares, strict=True) if share.tasks)
        )
        by_task = {group.task.id: group for part in parts for group in part}
        return [by_task[task.id] for task in batch.tasks]

    async def _share(self, host: Any, share: Batch, on_end: Callable[[], None]) -> list[Group]:
        versions = {role: engine.version for role, engine in self.engines.items()}
        for attempt in range(self.num_restart + 1):
            reporting = asyncio.create_task(_report(host, on_end, len(share.tasks) * share.num))
            try:
                groups: list[Group] = await host.collect.remote(share, versions)
                return groups
            except RayTaskError as error:
                raise unwrapped(error) from None
            except ACTOR_LOST as error:
                if attempt == self.num_restart:
                    raise EngineError(f"an environment host died {attempt + 1} times: {cause(error)}") from error
            finally:
                reporting.cancel()
        raise AssertionError("unreachable")


async def _report(host: Any, on_end: Callable[[], None], total: int) -> None:
    """Call `on_end` for every episode that the host has ended since."""
    before = await host.ended.remote()
    told = 0
    while told < total:
        await asyncio.sleep(REPORT_S)
        now = await host.ended.remote() - before
        for _ in range(now - told):
            on_end()
        told = now
