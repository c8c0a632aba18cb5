"""Episodes of many tasks, judged as they go: the same class in the loop's process and in every environment host."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rlanything.config.schema import RewardConfig, RolloutConfig
from rlanything.domains.base import Domain, JudgedDomain, ProgramDomain
from rlanything.engines.chat import ChatModel
from rlanything.rollout.episode import OnTurn, ignore_turn, run_group
from rlanything.rollout.judging import Judge
from rlanything.rollout.testing import UnitTester
from rlanything.types import Group, Task


@dataclass(frozen=True)
class Batch:
    """What to play: `num` episodes of every task; `seed` names the draw.

    Where it is `judged` and judging is `required`, an episode with a turn that the reward model cannot read is a
    failure; else that turn stays without an evaluation.
    """

    tasks: Sequence[Task]
    num: int
    seed: str
    rollout: RolloutConfig
    judged: bool = True
    required: bool = True


Collect = Callable[[Batch, Callable[[], None]], Awaitable[list[Group]]]  # what `Collector.collect` is


class Collector:
    """Plays batches with a policy; `reward` judges every finished turn m times while other episodes still act, or
    writes m unit tests of every task meanwhile."""

    def __init__(self, domain: Domain, policy: ChatModel, reward: ChatModel | None, config: RewardConfig) -> None:
        self.domain, self.policy, self.reward, self.config = domain, policy, reward, config

    async def collect(self, batch: Batch, on_end: Callable[[], None]) -> list[Group]:
        """The batch's groups, in its order; `on_end` is called after every episode. Raises EngineError, TaskError."""
        reward = self.reward if batch.judged else None
        if reward and isinstance(self.domain, ProgramDomain):
            tester = UnitTester(reward, self.domain, self.config, batch.seed)
            play = self._player(batch, ignore_turn, on_end)
            return list(await asyncio.gather(*(_tested(task, play, tester) for task in batch.tasks)))
        if reward and isinstance(self.domain, JudgedDomain):
            judge = Judge(reward, self.domain, self.config, batch.seed, batch.required)
            groups = list(await asyncio.gather(*map(self._player(batch, judge.on_turn, on_end), batch.tasks)))
            await judge.finish()
            return groups
        return list(await asyncio.gather(*map(self._player(batch, ignore_turn, on_end), batch.tasks)))

    def _player(self, batch: Batch, on_turn: OnTurn, on_end: Callable[[], None]) -> Callable[[Task], Awaitable[Group]]:
        limit = asyncio.Semaphore(batch.rollout.max_concurrent)

        def play(task: Task) -> Awaitable[Group]:
            return run_group(
                task, self.domain, self.policy, batch.rollout, batch.seed, batch.num, limit, on_turn, on_end
            )

        return play


async def _tested(task: Task, play: Callable[[Task], Awaitable[Group]], tester: UnitTester) -> Group:
    """A task's episodes and its tests, made at the same time; then every program meets every test."""
    group, tests = await asyncio.gather(play(task), tester.write(task))
    await tester.apply(group, tests)
    return group
