"""The reward model judges while episodes still go on: each turn as it ends, or by unit tests of every program."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rlanything.algorithm.advantages import step_signals
from rlanything.algorithm.consistency import passes_correct
from rlanything.config.schema import RewardConfig
from rlanything.domains.parts import StepJudging, TestJudging, unwritten
from rlanything.engines.base import PromptTooLong, request_seed
from rlanything.engines.chat_model import ChatModel
from rlanything.errors import ConfigError
from rlanything.types import Ending, Group, Judgement, Message, Place, Status, Task, Trajectory, Turn

T = TypeVar("T")
Judged = tuple[Trajectory, list[Judgement] | PromptTooLong]  # an episode, and the judgements of one of its turns


class Judge:
    """Fills `Group.judgements` of every group of a batch. This base class judges nothing."""

    def start(self, task: Task) -> None:
        """The task's episodes begin; returns at once."""

    def on_turn(self, task: Task, trajectory: Trajectory, i: int) -> None:
        """Turn i is over; returns at once."""

    async def signals(self, group: Group) -> dict[Place, float]:
        """The step signals of the turns so far, repeated ones too; none of a judge that does not score single steps.

        Further episodes of the task may begin then. Raises EngineError.
        """
        return {}

    async def finish(self, group: Group) -> None:
        """The task's episodes are over: wait for their judgements. Raises EngineError."""


def make_judge(
    model: ChatModel | None, judging: StepJudging | TestJudging | None, config: RewardConfig, seed: str, required: bool
) -> Judge:
    """The judge for a domain's kind of judging. `required`: see `StepJudge`."""
    if config.judge == "label" and config.num_evaluation:
        return LabelJudge(config, seed)
    match (model, judging):
        case (ChatModel(), StepJudging()) if config.num_evaluation:
            return StepJudge(model, judging, config, seed, required)
        case (ChatModel(), TestJudging()) if config.num_evaluation:
            return TestJudge(model, judging, config, seed)
    return Judge()


def cover_repeats(group: Group) -> None:
    """Let the judgements of a turn cover the episodes that repeat it, too.

    So their step signals are known, and a judgement earns what all of these episodes came to.
    """
    of_place = defaultdict(list)
    for judgement in group.judgements:
        for place in judgement.scores:
            of_place[place].append(judgement)
    for t in sorted(group.trajectories, key=lambda t: t.index):  # an origin has a smaller index than its branches
        if t.origin is None:
            continue
        for i in range(t.begun):
            for judgement in of_place[t.origin, i]:
                judgement.scores[t.index, i] = judgement.scores[t.origin, i]
                of_place[t.index, i].append(judgement)


def _signals(group: Group, judgements: Sequence[Judgement]) -> dict[Place, float]:
    """The step signals of every turn so far, repeated ones too. The judgements stay as they are."""
    judged = replace(group, judgements=[replace(j, scores=dict(j.scores)) for j in judgements])
    cover_repeats(judged)
    return {place: signal for place, signal in step_signals(judged.judgements).items() if signal is not None}


class StepJudge(Judge):
    """m judgements of every finished turn.

    A turn may not fit the reward model's context. If judgements are `required`, its episode is then a failure; else the
    turn stays without a judgement.
    """

    def __init__(
        self, model: ChatModel, judging: StepJudging, config: RewardConfig, seed: str, required: bool = True
    ) -> None:
        self.model, self.judging, self.config, self.seed, self.required = model, judging, config, seed, required
        self._pending: dict[str, list[asyncio.Task[Judged]]] = defaultdict(list)

    def on_turn(self, task: Task, trajectory: Trajectory, i: int) -> None:
        self._pending[task.id].append(_begin(self._judge(task, trajectory, i)))

    async def signals(self, group: Group) -> dict[Place, float]:
        return _signals(group, [j for _, found in await self._judged(group) for j in found])

    async def finish(self, group: Group) -> None:
        group.judgements += [j for _, found in await self._judged(group) for j in found]
        group.judgements.sort(key=lambda j: next(iter(j.scores)))
        cover_repeats(group)
        self._pending.pop(group.task.id, None)

    async def _judged(self, group: Group) -> list[tuple[Trajectory, list[Judgement]]]:
        """The judgements of every turn so far; an episode with a turn that could not be judged may break.

        Attempts that the environment broke were judged, too; they are left out.
        """
        kept, judged = {id(t) for t in group.trajectories}, []
        for trajectory, judgements in await asyncio.gather(*self._pending[group.task.id]):
            if id(trajectory) not in kept:
                continue
            if not isinstance(judgements, PromptTooLong):
                judged.append((trajectory, judgements))
            elif self.required:
                trajectory.status, trajectory.error = Status.JUDGE_ERROR, str(judgements)
                trajectory.ending = Ending.BROKEN
        return judged

    async def _judge(self, task: Task, trajectory: Trajectory, i: int) -> Judged:
        session = f"{self.seed}/{task.id}/{trajectory.index}"
        messages, seed = self.judging.asked(task, trajectory, i), request_seed(session, i, "judge")
        try:
            judgements = await _ask(self.model, messages, self.config, seed, session)
        except PromptTooLong as error:
            return trajectory, error
        for judgement in judgements:
            judgement.scores[trajectory.index, i], judgement.parse_error = self.judging.parse(
                judgement.text, trajectory.turns[i]
            )
        return trajectory, judgements


class LabelJudge(Judge):
    """The domain's own step labels as m judgements of every turn, for analysis; no model reads anything.

    `reward.label_noise` flips each judgement with this chance.
    """

    def __init__(self, config: RewardConfig, seed: str) -> None:
        self.config, self.seed = config, seed

    async def signals(self, group: Group) -> dict[Place, float]:
        return _signals(group, self._judgements(group))

    async def finish(self, group: Group) -> None:
        group.judgements = self._judgements(group)
        cover_repeats(group)

    def _judgements(self, group: Group) -> list[Judgement]:
        turns = [((t.index, i), t.turns[i].label) for t in group.valid for i in range(t.begun, len(t.turns))]
        original = not group.task.parent_id  # a domain may know no labels for what a rewriter wrote
        if turns and original and all(label is None for _, label in turns):
            raise ConfigError(
                f"reward.judge=label: the environment of task {group.task.id} labels no step; expected a domain whose "
                "observations have a label, or judge=model"
            )
        judgements = []
        for place, label in turns:
            if label is None:
                continue
            rng = random.Random(f"{self.seed}/{group.task.id}/{place}")
            for _ in range(self.config.num_evaluation):
                score = -label if rng.random() < self.config.label_noise else label
                judgements.append(unwritten(place, score))
        return judgements


class TestJudge(Judge):
    """m unit tests of every task, written while its programs are; each is then tried on every program."""

    __test__ = False  # for pytest

    def __init__(self, model: ChatModel, judging: TestJudging, config: RewardConfig, seed: str) -> None:
        self.model, self.judging, self.config, self.seed = model, judging, config, seed
        self._writing: dict[str, asyncio.Task[list[tuple[Judgement, Any]]]] = {}

    def start(self, task: Task) -> None:
        self._writing[task.id] = _begin(self._write(task))

    async def finish(self, group: Group) -> None:
        try:
            tests = await self._writing.pop(group.task.id)
        except PromptTooLong:  # the task does not fit the reward model's context: there are no tests
            return
        turns = [((t.index, i), t.turns[i]) for t in group.valid for i in range(t.begun, len(t.turns))]
        trials = [(place, turn, judgement, test) for place, turn in turns for judgement, test in tests]
        scores = await asyncio.gather(*(self._try(group.task, turn, test) for _, turn, _, test in trials))
        for (place, _, judgement, _), score in zip(trials, scores, strict=True):
            judgement.scores[place] = score
        for judgement, test in tests:
            every = self.config.step_tests == "all" or passes_correct(group, judgement) is True
            judgement.counts = test is not None and every
        group.judgements = [judgement for judgement, _ in tests]
        cover_repeats(group)

    async def _write(self, task: Task) -> list[tuple[Judgement, Any]]:
        session = f"{self.seed}/{task.id}/tests"
        tests = []
        answers = await _ask(self.model, self.judging.asked(task), self.config, request_seed(session), session)
        for judgement in answers:
            test, judgement.parse_error = self.judging.parse(judgement.text, task)
            judgement.shared = True
            tests.append((judgement, test))
        return tests

    async def _try(self, task: Task, turn: Turn, test: Any) -> int | None:
        if test is None:
            return None
        return -1 if turn.action is None else await self.judging.passes(task, turn.action, test)


async def _ask(
    model: ChatModel, messages: Sequence[Message], config: RewardConfig, seed: int, session: str
) -> list[Judgement]:
    """The reward model's answers, as judgements without scores."""
    prompt, replies = await model.ask(
        messages,
        num=config.num_evaluation,
        temperature=config.temperature,
        top_p=config.top_p,
        max_tokens=config.max_response_tokens,
        seed=seed,
        session=session,
    )
    return [Judgement(prompt=prompt, response_ids=r.ids, logprobs=r.logprobs, text=r.text) for r in replies]


def _begin(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task. `finish` raises its fault; without the callback asyncio would log those that are raised later."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task
