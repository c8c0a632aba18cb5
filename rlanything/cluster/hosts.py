"""Environment hosts: processes that hold many episodes each, and the collector that spreads a batch over them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from rlanything.cluster.board import was_restarted
from rlanything.cluster.calls import Patience, cause, unwrapped
from rlanything.cluster.engines import ReplicatedEngine
from rlanything.cluster.runtime import Runtime
from rlanything.config.roles import Role
from rlanything.config.schema import Config
from rlanything.domains.registry import make_domain
from rlanything.engines.base import EngineError
from rlanything.engines.chat import Chat
from rlanything.engines.chat_model import ChatModel
from rlanything.plan.placement import Slot
from rlanything.rollout.collect import Batch, Collector
from rlanything.types import Group

REPORT_S = 0.5  # between two looks at how far the hosts are
RESTARTS = "env_host_restarts"  # the fault's name
START_S = 120.0  # that a host's first answer may take longer


class EnvHost:
    """A Ray actor: plays and judges its share of every batch."""

    def __init__(self, config: Config, splits: Sequence[str], roles: Sequence[Role]) -> None:
        was_restarted(RESTARTS)
        self.config, self.domain = config, make_domain(config)
        self.domain.prepare(splits)
        self.chats = {role: Chat(config.model.of(role)) for role in roles}
        self._ended: dict[int, int] = {}
        self._playing: dict[int, asyncio.Task[Any] | None] = {}

    async def collect(self, number: int, batch: Batch, engines: Mapping[Role, ReplicatedEngine]) -> list[Group]:
        """See `Collector.collect`; `number` is the batch's. The engines come with every batch: Ray warns of an actor
        that may be started anew and was made with the handles of others.

        Where it is asked for a batch again, the connection to who asked first has broken: that playing ends.
        """
        if earlier := self._playing.get(number):
            earlier.cancel()
        this = self._playing[number] = asyncio.current_task()
        self._ended[number] = 0

        def on_end() -> None:
            if self._playing.get(number) is this:
                self._ended[number] += 1

        models = {role: ChatModel(engine, self.chats[role]) for role, engine in engines.items()}
        collector = Collector(self.domain, models["policy"], models.get("reward"), self.config.reward)
        try:
            return await collector.collect(batch, on_end)
        finally:
            if self._playing.get(number) is this:
                del self._ended[number], self._playing[number]

    async def ended(self, number: int) -> int:
        """Episodes of a batch that is under way; 0 of any other."""
        return self._ended.get(number, 0)


class HostCollector:
    """Spreads batches over hosts, in turn; the share of a host that dies is played anew by the one that Ray starts for
    it."""

    def __init__(
        self,
        runtime: Runtime,
        slots: Sequence[Slot],
        config: Config,
        splits: Sequence[str],
        engines: Mapping[Role, ReplicatedEngine],
    ) -> None:
        self.engines = {role: engine for role, engine in engines.items() if role in ("policy", "reward")}
        self.config = config.cluster
        options = {"max_restarts": self.config.num_restart, "max_concurrency": 1000}
        self._turn, self._numbers = 0, count()
        self.hosts = [runtime.start(EnvHost, slot, config, splits, list(self.engines), **options) for slot in slots]

    async def collect(self, batch: Batch, on_end: Callable[[], None]) -> list[Group]:
        """See `Collector.collect`. Episodes under way at once are shared out evenly too, over those that have tasks."""
        num = max(1, min(len(self.hosts), len(batch.tasks)))
        rollout = batch.rollout.model_copy(update={"max_concurrent": -(-batch.rollout.max_concurrent // num)})
        shares = [replace(batch, tasks=list(batch.tasks[i::num]), rollout=rollout) for i in range(num)]
        hosts = [self.hosts[(self._turn + i) % len(self.hosts)] for i in range(num)]
        self._turn += num
        parts = await asyncio.gather(*(self._share(h, share, on_end) for h, share in zip(hosts, shares, strict=True)))
        by_task = {group.task.id: group for part in parts for group in part}
        return [by_task[task.id] for task in batch.tasks]

    async def _share(self, host: Any, share: Batch, on_end: Callable[[], None]) -> list[Group]:
        patience, number = Patience(self.config.restart_timeout_s, "an environment host"), next(self._numbers)
        told = 0

        def tell(ended: int) -> None:
            nonlocal told
            for _ in range(ended - told):  # fewer than before where they are played anew
                on_end()
            told = max(told, ended)

        while True:
            watching = asyncio.create_task(_watch(host, number, tell, share.rollout.env_timeout_s, patience))
            try:
                groups: list[Group] = await host.collect.remote(number, share, self.engines)
                tell(len(share.tasks) * share.num)
                return groups
            except ActorUnavailableError:  # it died, and Ray starts it anew; or the connection broke
                await asyncio.sleep(patience.pause_s())
            except ActorDiedError as error:
                raise EngineError(
                    f"an environment host died more than cluster.num_restart={self.config.num_restart} times: "
                    f"{cause(error)}"
                ) from error
            except RayTaskError as error:
                raise unwrapped(error) from None
            finally:
                watching.cancel()


async def _watch(host: Any, number: int, tell: Callable[[int], None], timeout_s: float, patience: Patience) -> None:
    """Tell how many episodes of a batch have ended, until cancelled. A host that does not answer is ended: an
    environment blocks it, which no timeout within it can see."""
    limit_s = timeout_s + START_S  # it may be starting
    while True:
        try:
            async with asyncio.timeout(limit_s):
                ended = await host.ended.remote(number)
        except TimeoutError:
            ray.kill(host, no_restart=False)
            return
        except ActorDiedError:  # who waits for the share sees that too
            return
        except ActorUnavailableError:  # a connection that broke, or a death, which ends this from outside
            await asyncio.sleep(REPORT_S)
            continue
        patience.answered()
        limit_s = timeout_s
        tell(ended)
        await asyncio.sleep(REPORT_S)
