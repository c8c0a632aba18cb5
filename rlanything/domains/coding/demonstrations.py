"""What a supervised warm start learns from: solutions, tests and variants of problems that have solutions or chains."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from rlanything.domains.coding import generator, prompts
from rlanything.domains.coding.judging import CodingJudging
from rlanything.domains.coding.problems import Check
from rlanything.domains.coding.rewriting import CodingRewriting
from rlanything.domains.parts import Conversation, Demonstrating, conversation
from rlanything.errors import TaskError
from rlanything.types import Direction, Message, Task, assistant

NEEDS = {"policy": "solution", "reward": "solution", "rewriter": "chain"}  # what a row must have
NUM_PROGRAM, MAX_WRITTEN = 8, 8  # programs, and tests of a reward model, in a made-up critic


class CodingDemonstrating(Demonstrating):
    """Answers are made of the rows' own solutions and chains of operations."""

    def __init__(
        self,
        style: str,
        num_test: int,
        tasks: Callable[[str], list[Task]],
        judging: CodingJudging,
        rewriting: CodingRewriting,
    ) -> None:
        """`tasks` gives a split's problems, `num_test` is as in the options."""
        self.style, self.num_test, self.tasks, self.judging, self.rewriting = style, num_test, tasks, judging, rewriting

    def conversations(self, role: str, split: str, seed: int) -> Iterator[Conversation]:
        """An endless stream for a role. Raises TaskError if no row has what it needs."""
        tasks, rng = [task for task in self.tasks(split) if task.payload.get(NEEDS[role])], random.Random(seed)
        if not tasks:
            raise TaskError(
                f"split {split}: no problem has a {NEEDS[role]}, which demonstrations for the {role} are made of; give "
                "conversations of your own (data=FILE.jsonl)"
            )
        return self._stream(role, tasks, rng)

    def _stream(self, role: str, tasks: list[Task], rng: random.Random) -> Iterator[Conversation]:
        answer_of = {"policy": self._policy, "reward": self._reward, "rewriter": self._rewriter}[role]
        while True:
            task = rng.choice(tasks)
            messages, answer = answer_of(task, rng)
            trained = [False] * len(messages) + [True]
            yield Conversation(messages=[*messages, assistant(answer)], trained=trained, key=task.id)

    def _policy(self, task: Task, rng: random.Random) -> tuple[list[Message], str]:
        asked = conversation(prompts.POLICY_SYSTEM, prompts.statement(task.payload), self.style)
        return asked, prompts.program_response("", str(self.judging.reference(task)))

    def _reward(self, task: Task, rng: random.Random) -> tuple[list[Message], str]:
        chain: generator.Chain = task.payload.get("chain") or []
        small = generator.draw_tests(chain, rng, 1, small=True) if chain else None
        if not small:
            return self.judging.messages(task), prompts.test_response(Check(*rng.choice(task.payload["tests"])))
        worked = generator.worked_out(chain, small[0].input)
        return self.judging.messages(task), prompts.test_response(small[0], worked)

    def _rewriter(self, task: Task, rng: random.Random) -> tuple[list[Message], str]:
        while True:
            harder = rng.random() < 0.5
            chain = generator.vary(task.payload["chain"], harder, rng)
            tests = generator.draw_tests(chain, rng, prompts.MIN_TESTS, small=True)
            if tests is not None:
                break
        solved = rng.randint(NUM_PROGRAM - 1, NUM_PROGRAM) if harder else rng.randint(0, 1)
        own = [min(NUM_PROGRAM, solved + rng.randint(0, 1)) for _ in prompts.own_tests(task, self.num_test)]
        written = [_passed(solved, rng) for _ in range(rng.randint(0, MAX_WRITTEN))]
        failed = len(own) * NUM_PROGRAM - sum(own)
        critic = prompts.critic(NUM_PROGRAM, own, written, {"wrong_answer": failed} if failed else {})
        direction = Direction.HARDER if harder else Direction.EASIER
        asked = self.rewriting.messages(task, direction, solved / NUM_PROGRAM, critic)
        steps = [generator.worked_out(chain, test.input) for test in tests]
        return asked, prompts.problem_response(generator.statement(chain, rng), tests, steps)


def _passed(solved: int, rng: random.Random) -> tuple[int, bool]:
    """How many programs passed a reward model's test, and whether all of the `solved` correct ones did."""
    if solved and rng.random() < 0.5:
        return min(NUM_PROGRAM, solved + rng.randint(0, 1)), True
    return rng.randint(0, max(1, solved - 1)), False
