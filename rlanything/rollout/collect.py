"""Play and judge the episodes of many tasks, in the loop's process or in an environment host."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rlanything.config.schema import RewardConfig, RolloutConfig
from rlanything.domains.base import Domain
from rlanything.engines.chat_model import ChatModel
from rlanything.rollout.episode import Player
from rlanything.rollout.judging import make_judge
from rlanything.types import Group, Task


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch of tasks to play."""

    tasks: Sequence[Task]
    num: int
    """Episodes of every task."""
    seed: str
    """Batches with equal seeds are sampled alike."""
    rollout: RolloutConfig
    judged: bool = True
    """The reward model judges, if there is one."""
    required: bool = True
    """An episode that the reward model cannot judge is a failure."""


Collect = Callable[[Batch, Callable[[], None]], Awaitable[list[Group]]]
"""The type of `Collector.collect`."""


class Collector:
    """Plays batches with a policy; the reward model, if there is one, judges while other episodes still act."""

    def __init__(self, domain: Domain, policy: ChatModel, reward: ChatModel | None, config: RewardConfig) -> None:
        self.domain, self.policy, self.reward, self.config = domain, policy, reward, config

    async def collect(self, batch: Batch, on_end: Callable[[], None]) -> list[Group]:
        """The batch's groups, in its order; `on_end` is called after every episode. Raises EngineError, TaskError."""
        reward = self.reward if batch.judged else None
        config = self.config if batch.judged else self.config.model_copy(update={"num_evaluation": 0})
        judge = make_judge(reward, self.domain.judging, config, batch.seed, batch.required)
        player = Player(self.domain, self.policy, batch.rollout, batch.seed, judge)

        async def one(task: Task) -> Group:
            judge.start(task)
            group = await player.group(task, batch.num, on_end)
            await judge.finish(group)
            return group

        return list(await asyncio.gather(*map(one, batch.tasks)))
