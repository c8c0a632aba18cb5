"""Environment hosts: processes that hold many episodes each, and the collector that spreads a batch over them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from rlanything.chat import Chat, ChatModel
from rlanything.cluster.board import was_restarted
from rlanything.cluster.calls import Patience, cause, unwrapped
from rlanything.cluster.engines import ReplicatedEngine
from rlanything.cluster.placement import Slot
from rlanything.cluster.runtime import Runtime
from rlanything.collect import Batch, Collector
from rlanything.config import Config
from rlanything.domains.registry import make_domain
from rlanything.engines.base import EngineError
from rlanything.types import Group

REPORT_S = 0.5  # between two looks at how far the hosts are
RESTARTS = "env_host_restarts"  # the fault's name
START_S = 120.0  # a host's first answer may take longer: it may be starting


class EnvHost:
    """A Ray actor: plays and judges its share of every batch."""

    def __init__(self, config: Config, splits: Sequence[str], roles: Sequence[str]) -> None:
        was_restarted(RESTARTS)
        self.config, self.domain = config, make_domain(config)
        self.domain.prepare(splits)
        self.chats = {role: Chat(getattr(config.model, role)) for role in roles}
        self._ended = 0

    async def collect(self, batch: Batch, engines: Mapping[str, ReplicatedEngine]) -> list[Group]:
        """See `Collector.collect`. The engines come with every batch: Ray warns of an actor that may be started anew
        and was made with the handles of others."""
        models = {role: ChatModel(engine, self.chats[role]) for role, engine in engines.items()}
        collector = Collector(self.domain, models["policy"], models.get("reward"), self.config.reward)
        return await collector.collect(batch, self._count)

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
        self.config = config.cluster
        options = {"max_restarts": self.config.num_restart, "max_concurrency": 1000}
        self.hosts = [runtime.start(EnvHost, slot, config, splits, list(self.engines), **options) for slot in slots]

    async def collect(self, batch: Batch, on_end: Callable[[], None]) -> list[Group]:
        """See `Collector.collect`. Episodes under way at once are shared out evenly too, over those that have tasks."""
        num = max(1, min(len(self.hosts), len(batch.tasks)))
        rollout = replace(batch.rollout, max_concurrent=-(-batch.rollout.max_concurrent // num))
        shares = [replace(batch, tasks=list(batch.tasks[i::num]), rollout=rollout) for i in range(num)]
        parts = await asyncio.gather(
            *(self._share(host, share, on_end) for host, share in zip(self.hosts, shares, strict=False))
        )
        by_task = {group.task.id: group for part in parts for group in part}
        return [by_task[task.id] for task in batch.tasks]

    async def _share(self, host: Any, share: Batch, on_end: Callable[[], None]) -> list[Group]:
        patience = Patience(self.config.restart_timeout_s, "an environment host")
        while True:
            reporting = asyncio.create_task(_report(host, on_end, share, patience))
            try:
                groups: list[Group] = await host.collect.remote(share, self.engines)
                return groups
            except ActorUnavailableError:  # it died, and Ray starts it anew
                await asyncio.sleep(patience.pause_s())
            except ActorDiedError as error:
                raise EngineError(
                    f"an environment host died more than cluster.num_restart={self.config.num_restart} times: "
                    f"{cause(error)}"
                ) from error
            except RayTaskError as error:
                raise unwrapped(error) from None
            finally:
                reporting.cancel()


async def _report(host: Any, on_end: Callable[[], None], share: Batch, patience: Patience) -> None:
    """Call `on_end` for every episode that the host has ended since, until cancelled. A host that does not answer is
    ended: an environment blocks it, which no timeout within it can see."""
    before, told, timeout_s = None, 0, share.rollout.env_timeout_s
    while True:
        try:
            async with asyncio.timeout(timeout_s if before is not None else timeout_s + START_S):
                ended = await host.ended.remote()
        except TimeoutError:
            ray.kill(host, no_restart=False)
            return
        except ActorDiedError:  # who waits for the share sees that too
            return
        except ActorUnavailableError:  # a connection that broke, or a death, which ends this from outside
            await asyncio.sleep(REPORT_S)
            continue
        patience.answered()
        before = ended if before is None else before
        now = min(ended - before, len(share.tasks) * share.num)
        for _ in range(now - told):
            on_end()
        told = now
        await asyncio.sleep(REPORT_S)
