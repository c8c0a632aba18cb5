"""Demonstrations for supervised warm starts: the solutions and tests of problems that have a solution."""

import random
from collections.abc import Callable, Iterator

from rlanything.domains.base import Domain, Observation
from rlanything.domains.coding import prompts
from rlanything.domains.coding.problems import Check
from rlanything.domains.parts import Conversation, Demonstrating
from rlanything.errors import TaskError
from rlanything.types import Message, Task, assistant

Answer = Callable[[Task, random.Random], tuple[list[Message], str]]
"""Returns the prompt for a task, and the answer to learn."""
OWN_DATA = "give conversations of your own (data=FILE.jsonl)"


class CodingDemonstrating(Demonstrating):
    """The policy learns solutions, and the reward model a problem's own tests."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain

    def answers(self) -> dict[str, tuple[str, Answer]]:
        """For each role the field that a row must have, and the function that makes an answer of it."""
        return {"policy": ("solution", self._policy), "reward": ("solution", self._reward)}

    def conversations(self, role: str, split: str, seed: int) -> Iterator[Conversation]:
        """An endless stream for a role. Raises TaskError if no row has what it needs."""
        if role not in self.answers():
            raise TaskError(
                f"coding has no demonstrations for the {role}; for problems of scripts/generate_problems.py set "
                f"dataset.domain=scripts.coding_problems.domain:GeneratedProblems, for others {OWN_DATA}"
            )
        field, answer = self.answers()[role]
        tasks = [task for task in self.domain.tasks(split) if task.payload.get(field)]
        if not tasks:
            raise TaskError(
                f"split {split}: no problem has a {field}, which demonstrations for the {role} are made of; {OWN_DATA}"
            )
        return self._stream(answer, tasks, random.Random(seed))

    def _stream(self, answer: Answer, tasks: list[Task], rng: random.Random) -> Iterator[Conversation]:
        while True:
            task = rng.choice(tasks)
            messages, said = answer(task, rng)
            trained = [False] * len(messages) + [True]
            yield Conversation(messages=[*messages, assistant(said)], trained=trained, key=task.id)

    def _policy(self, task: Task, rng: random.Random) -> tuple[list[Message], str]:
        asked = self.domain.opening(task, Observation(prompts.statement(task.payload)))
        return asked, prompts.program_response("", str(task.payload["solution"]))

    def _reward(self, task: Task, rng: random.Random) -> tuple[list[Message], str]:
        asked = prompts.test_messages(task.payload, self.domain.config.dataset.prompt)
        return asked, prompts.test_response(Check(*rng.choice(task.payload["tests"])))
