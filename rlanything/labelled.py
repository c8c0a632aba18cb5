"""Judgements to learn from: a policy's own episodes, whose steps the domain labels.

Demonstrations are made by rules, so their mistakes are others than a policy's. A reward model that knows those alone
is near chance on the steps that it has to judge in the loop.
"""

import math
import random
from collections.abc import Iterator, Sequence

from rlanything.algorithm.diagnostics import tally
from rlanything.algorithm.summary import summary
from rlanything.config.schema import Config
from rlanything.domains.base import Domain
from rlanything.domains.parts import Conversation, StepJudging
from rlanything.engines.chat_model import ChatModel
from rlanything.errors import ConfigError
from rlanything.evaluation.play import check_failures, drawn_tasks, evaluation_batch
from rlanything.rollout.collect import Collector
from rlanything.runs.progress import Progress
from rlanything.types import Task, Trajectory, assistant


async def labelled_episodes(
    domain: Domain, policy: ChatModel, config: Config, split: str, num: int, progress: Progress
) -> list[list[Conversation]]:
    """The judgements of at least `num` episodes on a split, one conversation for every labelled step.

    Tasks are played several times only if there are fewer than `num`. Raises ConfigError if no step has a label.
    """
    judging = domain.judging
    if not isinstance(judging, StepJudging):
        raise ConfigError(f"policy: dataset.domain={config.dataset.domain} has no judge of single steps")
    tasks = drawn_tasks(domain, split, num, config.experiment.seed)
    config = config.model_copy(deep=True)
    config.evaluation.num_rollout = math.ceil(num / len(tasks))
    batch = evaluation_batch(tasks, config, judged=False)
    with progress.phase(f"playing {split}", len(tasks) * batch.num) as bar:
        groups = await Collector(domain, policy, None, config).groups(batch, bar.advance)
    check_failures([summary(group, tally(group)) for group in groups], config.rollout.max_failure_rate)

    def judgements(task: Task, t: Trajectory) -> Iterator[Conversation]:
        for i, turn in enumerate(t.turns):
            if turn.label is not None:
                asked, said = judging.asked(task, t, i), assistant(judging.answer(task, turn))
                trained = [False] * len(asked) + [True]
                yield Conversation(messages=[*asked, said], trained=trained, key=f"{task.id}/{t.index}", judged=turn)

    episodes = [list(judgements(g.task, t)) for g in groups for t in g.valid]
    if not any(episodes):
        raise ConfigError(
            f"policy: the environments of split {split} label no step; expected a domain whose observations have a "
            "label, or no policy"
        )
    return episodes


def endless(episodes: Sequence[Sequence[Conversation]], seed: int) -> Iterator[Conversation]:
    """The episodes again and again, in another order each time. Steps of one follow each other, and share a prefix."""
    rng, order = random.Random(seed), list(episodes)
    while True:
        rng.shuffle(order)
        for episode in order:
            yield from episode
