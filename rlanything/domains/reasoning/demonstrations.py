"""Demonstrations of problems whose rows have a solution: its calls, and what they show."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlanything.domains.base import Observation
from rlanything.domains.parts import Conversation, Demonstrating
from rlanything.domains.reasoning.calls import call_text
from rlanything.errors import TaskError
from rlanything.types import Message, Task, assistant, tool

if TYPE_CHECKING:
    from rlanything.domains.reasoning.domain import ReasoningDomain


class ReasoningDemonstrating(Demonstrating):
    """The policy learns the calls of solutions, and their answers."""

    def __init__(self, domain: ReasoningDomain) -> None:
        self.domain = domain

    def conversations(self, role: str, split: str, seed: int) -> Iterator[Conversation]:
        tasks = [task for task in self.domain.tasks(split) if task.payload.get("cells")]
        if role != "policy" or not tasks:
            what = (
                f"reasoning has none for the {role}" if role != "policy" else f"no problem of split {split} has cells"
            )
            raise TaskError(f"demonstrations: {what}; give conversations of your own (data=FILE.jsonl)")
        return self._endless(tasks, random.Random(seed))

    def _endless(self, tasks: list[Task], rng: random.Random) -> Iterator[Conversation]:
        while True:
            yield self.solution(rng.choice(tasks), with_calls=True)

    def solution(self, task: Task, with_calls: bool) -> Conversation:
        """The solution as a conversation; without its calls it is the answer alone."""
        messages: list[Message] = self.domain.opening(task, Observation(task.payload["question"]))
        trained = [False] * len(messages)
        steps = (
            zip(task.payload["cells"], task.payload["outputs"], strict=True)
            if with_calls and self.domain.options.tool
            else ()
        )
        for cell, output in steps:
            messages += [assistant(call_text(cell)), tool(output)]
            trained += [True, False]
        messages.append(assistant(answer_text(task.payload["answer"])))
        return Conversation(messages=messages, trained=[*trained, True], tools=self.domain.tools(), key=task.id)


def answer_text(answer: str) -> str:
    """An answer as a policy gives it."""
    return f"\\boxed{{{answer}}}"
