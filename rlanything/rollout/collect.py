"""Play and judge the episodes of many tasks, in the loop's process or in an environment host."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlanything.config.schema import Config, RolloutConfig
from rlanything.domains.base import Domain
from rlanything.engines.chat_model import ChatModel
from rlanything.rollout.continuations import Continuations, MeasuredJudge
from rlanything.rollout.digest import Digest, digest
from rlanything.rollout.episode import Player
from rlanything.rollout.judging import Judge, make_judge
from rlanything.runs.store import part_path, write_groups
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
    path: Path | None = None
    """Folder for the episodes, a file for each process that plays some of them; None: they are not kept."""
    part: int = 0
    """Number of this process' file; others that play the batch have the next numbers, at most one for each task."""
    judged: bool = True
    """The reward model judges, if there is one."""
    required: bool = True
    """An episode that the reward model cannot judge is a failure."""
    trains: bool = True
    """Make feedback and samples for the learners."""


Collect = Callable[[Batch, Callable[[], None]], Awaitable[list[Digest]]]
"""The type of `Collector.collect`."""


class Collector:
    """Plays batches with a policy; the reward model, if there is one, judges while other episodes still act."""

    def __init__(self, domain: Domain, policy: ChatModel, reward: ChatModel | None, config: Config) -> None:
        self.domain, self.policy, self.reward, self.config = domain, policy, reward, config

    async def collect(self, batch: Batch, on_end: Callable[[], None]) -> list[Digest]:
        """Play a batch, digest each group as it ends, and write the episodes; returns the digests in the batch's order.

        `on_end` is called after every episode. Raises EngineError, TaskError.
        """
        digests: dict[str, Digest] = {}

        def digested(group: Group) -> None:
            digests[group.task.id] = digest(group, self.domain, self.config, batch.trains)

        groups = await self.groups(batch, on_end, digested)
        if batch.path:
            path = part_path(batch.path, batch.part)
            await asyncio.to_thread(write_groups, path, groups, self.domain.describe, self.domain.kind)
        return [digests[task.id] for task in batch.tasks]

    async def groups(
        self, batch: Batch, on_end: Callable[[], None], on_group: Callable[[Group], None] = lambda group: None
    ) -> list[Group]:
        """The batch's groups, in its order; `on_group` is called with each as soon as it is judged."""
        judge = self._judge(batch) if batch.judged else Judge()
        player = Player(self.domain, self.policy, batch.rollout, batch.seed, judge)

        async def one(task: Task) -> Group:
            judge.start(task)
            group = await player.group(task, batch.num, on_end)
            await judge.finish(group)
            on_group(group)
            return group

        return list(await asyncio.gather(*map(one, batch.tasks)))

    def _judge(self, batch: Batch) -> Judge:
        config = self.config.reward
        if config.judge == "measured" and config.num_evaluation:
            num = config.num_evaluation
            return MeasuredJudge(Continuations(self.domain, self.policy, batch.rollout, num, batch.seed))
        return make_judge(self.reward, self.domain.judging, config, batch.seed, batch.required)
