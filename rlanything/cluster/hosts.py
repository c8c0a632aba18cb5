"""Environment hosts, processes that play many episodes at once, and the collector that spreads batches over them."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from rlanything.cluster.board import was_restarted
from rlanything.cluster.calls import ACTOR_LOST, Patience, cause, unwrapped
from rlanything.config.roles import LEARNERS
from rlanything.config.schema import ClusterConfig, Config
from rlanything.config.section import Role
from rlanything.domains.registry import make_domain
from rlanything.engines.base import Engine, EngineError
from rlanything.engines.chat import Chat
from rlanything.engines.chat_model import ChatModel
from rlanything.rollout.collect import Batch, Collector
from rlanything.rollout.digest import Digest
from rlanything.types import Sample, SampleSet

logger = logging.getLogger(__name__)
REPORT_S = 0.5  # between two progress reports of a host, at least
NUM_REPORT = 32  # reports of all hosts that the driver asks for in a second, at most: each costs it an actor call
RESTARTS = "env_host_restarts"  # the fault that the board counts
START_S = 120.0  # more time for a host's first answer: it may be starting
CLOSE_S = 20.0  # for hosts to end what their domain holds: desktops, containers


class _Playing:
    """A batch under way."""

    def __init__(self, task: Any) -> None:
        self.task, self.ended = task, 0

    def on_end(self) -> None:
        """Count one more ended episode."""
        self.ended += 1


class EnvHost:
    """A Ray actor that plays and judges its share of every batch."""

    def __init__(self, config: Config, splits: Sequence[str], roles: Sequence[Role]) -> None:
        was_restarted(RESTARTS)
        self.config, self.domain = config, make_domain(config)
        self.domain.prepare(splits)
        self.chats = {role: Chat(config.model.of(role)) for role in roles}
        self._playing: dict[int, _Playing] = {}

    async def collect(self, number: int, batch: Batch, engines: Mapping[Role, Engine]) -> list[Any]:
        """Play batch `number` as `Collector.collect` does. Returns the digests without samples, then each set's
        samples, padded to `num_result(batch)` results: so each set is an object by itself, and a large one stays here.

        A repeated batch number means that the caller reconnected after a broken connection, so the earlier attempt is
        cancelled. The engines come with every batch, not with `__init__`, because Ray warns of a restartable actor that
        is created with another's handle.
        """
        if earlier := self._playing.get(number):
            earlier.task.cancel()
        this = self._playing[number] = _Playing(asyncio.current_task())
        models = {role: ChatModel(engine, self.chats[role]) for role, engine in engines.items()}
        collector = Collector(self.domain, models["policy"], models.get("reward"), self.config)
        try:
            digests = await collector.collect(batch, this.on_end)
        finally:
            if self._playing.get(number) is this:
                del self._playing[number]
        samples: list[list[Sample]] = []
        stripped = [_moved(digest, lambda one: samples.append(one.samples)) for digest in digests]
        return [stripped, *samples, *[None] * (num_result(batch) - 1 - len(samples))]

    async def ended(self, number: int) -> int:
        """The number of ended episodes of a batch that is under way; 0 for any other batch."""
        return self._playing[number].ended if number in self._playing else 0

    async def close(self) -> None:
        """End what is played and judged, and what the domain holds: not all of it dies with this process."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=CLOSE_S / 2)
        await asyncio.get_running_loop().shutdown_default_executor()  # what environments still end in threads
        self.domain.close()


def close_hosts(hosts: Sequence[Any]) -> None:
    """Close hosts, all at once. A host that does not answer in time is left to `Runtime.close`, which kills it."""
    if not hosts:
        return
    calls = [host.close.remote() for host in hosts]
    ended, late = ray.wait(calls, num_returns=len(calls), timeout=CLOSE_S)
    if late:
        logger.warning(
            "%d of %d environment hosts did not end within %g s; they are killed", len(late), len(hosts), CLOSE_S
        )
    for call in ended:
        try:
            ray.get(call)
        except ACTOR_LOST:
            continue
        except RayTaskError as error:
            logger.warning("an environment host did not end what it holds: %s", unwrapped(error))


def num_result(batch: Batch) -> int:
    """Results of `EnvHost.collect`: the digests, and room for one set of samples of each episode and learner, and for
    the unit tests of each task. (Ray wants to know their number, and takes one result for no list.)"""
    return 2 + len(batch.tasks) * (len(LEARNERS) * batch.num + 1) * batch.trains


def with_references(digests: Sequence[Digest], samples: Sequence[Any]) -> list[Digest]:
    """The digests, with a host's results for their sets in place of the samples."""
    references = iter(samples)
    return [_moved(digest, lambda _: next(references)) for digest in digests]


def _moved(digest: Digest, move: Callable[[SampleSet], Any]) -> Digest:
    """The digest with what `move` returns in place of each set's samples."""
    sets = {role: [replace(one, samples=move(one)) for one in of_role] for role, of_role in digest.sets.items()}
    return replace(digest, sets=sets)


def report_s(num_host: int) -> float:
    """Seconds between two progress reports of each of so many hosts."""
    return max(REPORT_S, num_host / NUM_REPORT)


class HostCollector:
    """Spreads batches over the hosts in turn. If a host dies, Ray restarts it and it plays its share from the start."""

    def __init__(self, hosts: Sequence[Any], config: ClusterConfig, engines: Mapping[Role, Engine]) -> None:
        self.hosts, self.config, self.engines = hosts, config, engines
        self._turn, self._numbers = 0, count()

    async def collect(self, batch: Batch, on_end: Callable[[], None]) -> list[Digest]:
        """Collect a batch as `Collector.collect` does, but with references to samples. Hosts that get tasks also share
        `max_concurrent` evenly.

        Raises EngineError if a host dies more than `cluster.num_restart` times, or is not back in time.
        """
        num = max(1, min(len(self.hosts), len(batch.tasks)))
        rollout = batch.rollout.model_copy(update={"max_concurrent": -(-batch.rollout.max_concurrent // num)})
        shares = [
            replace(batch, tasks=list(batch.tasks[i::num]), rollout=rollout, part=batch.part + i) for i in range(num)
        ]
        hosts = [self.hosts[(self._turn + i) % len(self.hosts)] for i in range(num)]
        self._turn += num
        parts = await asyncio.gather(
            *(self._share(h, share, report_s(num), on_end) for h, share in zip(hosts, shares, strict=True))
        )
        by_task = {digest.summary.task.id: digest for part in parts for digest in part}
        return [by_task[task.id] for task in batch.tasks]

    async def _share(self, host: Any, share: Batch, pause_s: float, on_end: Callable[[], None]) -> list[Digest]:
        patience, number = Patience(self.config.restart_timeout_s, "an environment host"), next(self._numbers)
        told = 0

        def tell(ended: int) -> None:
            nonlocal told
            for _ in range(ended - told):  # a share that is played again counts from 0: nothing to report yet
                on_end()
            told = max(told, ended)

        while True:
            timeout_s = share.rollout.env_timeout_s
            watching = asyncio.create_task(_watch(host, number, tell, timeout_s, pause_s, patience))
            try:
                call = host.collect.options(num_returns=num_result(share))
                answer, *samples = call.remote(number, share, self.engines)
                digests: list[Digest] = await answer
                tell(len(share.tasks) * share.num)
                return with_references(digests, samples)
            except ActorUnavailableError:  # Ray restarts the host, or the connection broke
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


async def _watch(
    host: Any, number: int, tell: Callable[[int], None], timeout_s: float, pause_s: float, patience: Patience
) -> None:
    """Report how many episodes of a batch have ended, `pause_s` apart, until cancelled.

    Kill a host that does not answer: an environment blocks its event loop, so that no timeout within it can fire.
    """
    limit_s = timeout_s + START_S
    while True:
        try:
            async with asyncio.timeout(limit_s):
                ended = await host.ended.remote(number)
            patience.answered()
            limit_s = timeout_s
            tell(ended)
        except TimeoutError:
            ray.kill(host, no_restart=False)
            return
        except ActorDiedError:  # the call that waits for the share raises it
            return
        except ActorUnavailableError:  # the connection broke, or the host died and `_share` cancels this
            pass
        await asyncio.sleep(pause_s)
