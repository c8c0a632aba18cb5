"""The reward model at work, while other episodes still act: step judgements, or unit tests for every program."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any, TypeVar

from rlanything.algorithm.consistency import passes_correct
from rlanything.config.schema import RewardConfig
from rlanything.domains.parts import StepJudging, TestJudging
from rlanything.engines.base import PromptTooLong, request_seed
from rlanything.engines.chat_model import ChatModel, Reply
from rlanything.types import Ending, Group, Judgement, Prompt, Status, Task, Trajectory, Turn

T = TypeVar("T")


class Judge:
    """Fills `Group.judgements` of every group of a batch. This base class judges nothing."""

    def start(self, task: Task) -> None:
        """The task's episodes begin; returns at once."""

    def on_turn(self, task: Task, trajectory: Trajectory, i: int) -> None:
        """Turn i is over; returns at once."""

    async def finish(self, group: Group) -> None:
        """The task's episodes are over: wait for all that is said of them. Raises EngineError."""


def make_judge(
    model: ChatModel | None, judging: StepJudging | TestJudging | None, config: RewardConfig, seed: str, required: bool
) -> Judge:
    """The judge for a domain's kind of judging. `required`: see `StepJudge`."""
    match (model, judging):
        case (ChatModel(), StepJudging()) if config.num_evaluation:
            return StepJudge(model, judging, config, seed, required)
        case (ChatModel(), TestJudging()) if config.num_evaluation:
            return TestJudge(model, judging, config, seed)
    return Judge()


class StepJudge(Judge):
    """m judgements of every finished turn.

    If judgements are `required`, an episode with a turn that does not fit the reward model's context is a failure; else
    that turn stays without a judgement.
    """

    def __init__(
        self, model: ChatModel, judging: StepJudging, config: RewardConfig, seed: str, required: bool = True
    ) -> None:
        self.model, self.judging, self.config, self.seed, self.required = model, judging, config, seed, required
        self._pending: dict[str, list[tuple[Trajectory, asyncio.Task[list[Judgement]]]]] = defaultdict(list)

    def on_turn(self, task: Task, trajectory: Trajectory, i: int) -> None:
        """Start the judgements of turn i."""
        started = _begin(self._judge(task, trajectory, i))
        self._pending[task.id].append((trajectory, started))

    async def finish(self, group: Group) -> None:
        """Attempts that the environment broke were judged too, but are no longer in the group."""
        pending = self._pending.pop(group.task.id, [])
        await _all(started for _, started in pending)
        kept = {id(t) for t in group.trajectories}
        for trajectory, started in pending:
            if id(trajectory) not in kept:
                continue
            try:
                group.judgements += started.result()
            except PromptTooLong as error:
                if self.required:
                    trajectory.status, trajectory.error = Status.JUDGE_ERROR, str(error)
                    trajectory.ending = Ending.BROKEN
        group.judgements.sort(key=lambda j: next(iter(j.scores)))

    async def _judge(self, task: Task, trajectory: Trajectory, i: int) -> list[Judgement]:
        session = f"{self.seed}/{task.id}/{trajectory.index}"
        prompt, replies = await self.model.ask(
            self.judging.messages(task, trajectory, i),
            num=self.config.num_evaluation,
            temperature=self.config.temperature,
            max_tokens=self.config.max_response_tokens,
            seed=request_seed(session, i, "judge"),
            session=session,
        )
        found = []
        for reply in replies:
            score, problem = self.judging.parse(reply.text)
            judgement = _judgement(prompt, reply, problem)
            judgement.scores[trajectory.index, i] = score
            found.append(judgement)
        return found


class TestJudge(Judge):
    """m unit tests of every task, written while its programs are written; each is then tried on every program."""

    __test__ = False  # for pytest

    def __init__(self, model: ChatModel, judging: TestJudging, config: RewardConfig, seed: str) -> None:
        self.model, self.judging, self.config, self.seed = model, judging, config, seed
        self._writing: dict[str, asyncio.Task[list[tuple[Judgement, Any]]]] = {}

    def start(self, task: Task) -> None:
        """Begin to write the tests."""
        self._writing[task.id] = _begin(self._write(task))

    async def finish(self, group: Group) -> None:
        """Try every test on every program, and decide which tests count."""
        try:
            tests = await self._writing.pop(group.task.id)
        except PromptTooLong:  # the task does not fit the reward model's context: there are no tests
            return
        turns = [((t.index, i), turn) for t in group.valid for i, turn in enumerate(t.turns)]
        tried = [self._try(group.task, turn, test) for _, turn in turns for _, test in tests]
        scores = iter(await asyncio.gather(*tried))
        for place, _ in turns:
            for judgement, _ in tests:
                judgement.scores[place] = next(scores)
        for judgement, test in tests:
            every = self.config.step_tests == "all" or passes_correct(group, judgement) is True
            judgement.counts = test is not None and every
        group.judgements = [judgement for judgement, _ in tests]

    async def _write(self, task: Task) -> list[tuple[Judgement, Any]]:
        session = f"{self.seed}/{task.id}/tests"
        prompt, replies = await self.model.ask(
            self.judging.messages(task),
            num=self.config.num_evaluation,
            temperature=self.config.temperature,
            max_tokens=self.config.max_response_tokens,
            seed=request_seed(session),
            session=session,
        )
        tests = []
        for reply in replies:
            test, problem = self.judging.parse(reply.text, task)
            judgement = _judgement(prompt, reply, problem)
            judgement.shared = True
            tests.append((judgement, test))
        return tests

    async def _try(self, task: Task, turn: Turn, test: Any) -> int | None:
        if test is None:
            return None
        return -1 if turn.action is None else await self.judging.passes(task, turn.action, test)


def _judgement(prompt: Prompt, reply: Reply, parse_error: str) -> Judgement:
    return Judgement(
        prompt=prompt, response_ids=reply.ids, logprobs=reply.logprobs, text=reply.text, parse_error=parse_error
    )


def _begin(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task. `finish` raises the first fault; without the callback asyncio would print every other one."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def _all(tasks: Any) -> None:
    """Wait for tasks. A fault other than PromptTooLong is raised at once; the tasks that still run are cancelled."""
    waiting = set(tasks)
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                error = task.exception()
                if error is not None and not isinstance(error, PromptTooLong):
                    raise error
    finally:
        for task in waiting:
            task.cancel()
