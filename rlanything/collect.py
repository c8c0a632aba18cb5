"""Episodes of many tasks, judged as they go: the same class in the loop's process and in every environment host."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rlanything.chat import ChatModel
from rlanything.config import RewardConfig, RolloutConfig
from rlanything.domains.base import Domain
from rlanything.judge import Judge
from rlanything.rollout import ignore_turn, run_group
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
    """Plays batches with a policy; `reward` judges every finished turn m times while other episodes still act."""

    def __init__(self, domain: Domain, policy: ChatModel, reward: ChatModel | None, config: RewardConfig) -> None:
        self.domain, self.policy, self.reward, self.config = domain, policy, reward, config

    async def collect(self, batch: Batch, on_end: Callable[[], None]) -> list[Group]:
        """The batch's groups, in its order; `on_end` is called after every episode. Raises EngineError, TaskError."""
        reward = self.reward if batch.judged else None
        judge = Judge(reward, self.domain, self.config, batch.seed, batch.required) if reward else None
        limit = asyncio.Semaphore(batch.rollout.max_concurrent)
        on_turn = judge.on_turn if judge else ignore_turn
        running = [
            run_group(t, self.domain, self.policy, batch.rollout, batch.seed, batch.num, limit, on_turn, on_end)
            for t in batch.tasks
        ]
        groups = list(await asyncio.gather(*running))
        if judge:
            await judge.finish()
        return groups
