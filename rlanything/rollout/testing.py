"""The reward model as a writer of unit tests: m tests of every task, each tried on every program of the task."""

from __future__ import annotations

import asyncio
from typing import Any

from rlanything.config.schema import RewardConfig
from rlanything.domains.base import ProgramDomain
from rlanything.engines.base import PromptTooLong, SamplingParams
from rlanything.engines.chat import ChatModel
from rlanything.rollout.episode import request_seed
from rlanything.types import Evaluation, Group, Task, Turn

Test = tuple[Evaluation, Any]  # what the reward model wrote, and the test that the domain reads in it (None: none)


class UnitTester:
    """Writes a task's tests while its programs are written, and tries them once these are there."""

    def __init__(self, model: ChatModel, domain: ProgramDomain, config: RewardConfig, seed: str) -> None:
        self.model, self.domain, self.config, self.seed = model, domain, config, seed

    async def write(self, task: Task) -> list[Test]:
        """m tests of a task; none where the task does not fit the reward model's context. Raises EngineError."""
        chat, config = self.model.chat, self.config
        session = f"{self.seed}/{task.id}/tests"
        sampling = SamplingParams(
            config.temperature,
            config.max_response_tokens,
            stop_token_ids=chat.stop_ids,
            seed=request_seed(session),
            session=session,
        )
        try:
            prompt, completions = await self.model.ask(self.domain.test_messages(task), sampling, config.num_evaluation)
        except PromptTooLong:
            return []
        tests = []
        for completion in completions:
            text = chat.decode(completion.token_ids)
            test, problem = self.domain.parse_test(text, task)
            tests.append((Evaluation(prompt, completion.token_ids, completion.logprobs, text, None, problem), test))
        return tests

    async def apply(self, group: Group, tests: list[Test]) -> None:
        """Try every test on every program; then a test's own score is whether all correct programs pass it."""
        group.tests = [evaluation for evaluation, _ in tests]
        turns = [(t.success, turn) for t in group.valid for turn in t.turns]
        await asyncio.gather(*(self._try(group.task, turn, tests) for _, turn in turns))
        for j, test in enumerate(group.tests):
            right = [turn.test_scores[j] for success, turn in turns if success]
            found = [score for score in right if score is not None]
            test.score = min(found) if found else None

    async def _try(self, task: Task, turn: Turn, tests: list[Test]) -> None:
        async def score(test: Any) -> int | None:
            if test is None:
                return None
            return -1 if turn.action is None else await self.domain.passes(task, turn.action, test)

        turn.test_scores = list(await asyncio.gather(*(score(test) for _, test in tests)))
