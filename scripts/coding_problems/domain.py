"""The coding domain with demonstrations that know a generated problem's chain of operations.

The reward model learns to work a test's output out step by step, and the rewriter to vary the chain by one operation.
"""

from __future__ import annotations

import json
import random

from rlanything.config.schema import Config
from rlanything.domains.coding import prompts
from rlanything.domains.coding.demonstrations import Answer, CodingDemonstrating
from rlanything.domains.coding.domain import CodingDomain
from rlanything.types import Direction, Message, Task

from .generator import Chain, answer, draw_tests, operation_of, statement
from .operations import ANSWER, NUMBERS, OPERATIONS, READ

NUM_PROGRAM, MAX_WRITTEN = 8, 8  # programs, and tests of a reward model, in a made-up critic


class GeneratedProblems(CodingDomain):
    """Coding on problems of scripts/generate_problems.py."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.demonstrating = GeneratedDemonstrating(self)


class GeneratedDemonstrating(CodingDemonstrating):
    """Demonstrations that are made of the rows' chains."""

    domain: CodingDomain

    def answers(self) -> dict[str, tuple[str, Answer]]:
        """The rewriter's too, which other problems have no demonstrations for."""
        return super().answers() | {"rewriter": ("chain", self._rewriter)}

    def _reward(self, task: Task, rng: random.Random) -> tuple[list[Message], str]:
        chain = task.payload.get("chain", [])
        tests = draw_tests(chain, rng, 1, small=True) if chain else None
        if tests is None:
            return super()._reward(task, rng)
        return self.domain.judging.messages(task), prompts.test_response(tests[0], worked_out(chain, tests[0].input))

    def _rewriter(self, task: Task, rng: random.Random) -> tuple[list[Message], str]:
        tests = None
        while tests is None:
            harder = rng.random() < 0.5
            chain = vary(task.payload["chain"], harder, rng)
            tests = draw_tests(chain, rng, prompts.MIN_TESTS, small=True)
        solved = rng.randint(NUM_PROGRAM - 1, NUM_PROGRAM) if harder else rng.randint(0, 1)
        direction = Direction.HARDER if harder else Direction.EASIER
        asked = self.domain.rewriting.messages(task, direction, solved / NUM_PROGRAM, self._critic(task, solved, rng))
        written = []
        for test in tests:
            steps = worked_out(chain, test.input)
            shown = {"input": test.input.rstrip()} | ({"steps": steps} if steps else {})
            written.append(shown | {"output": test.output.rstrip()})
        return asked, json.dumps({"question": statement(chain, rng), "tests": written})

    def _critic(self, task: Task, solved: int, rng: random.Random) -> str:
        """Make up what the critic says of a problem that `solved` programs solve."""
        num_test = len(self.domain.own_tests(task))
        own = [min(NUM_PROGRAM, solved + rng.randint(0, 1)) for _ in range(num_test)]
        written = [_passed(solved, rng) for _ in range(rng.randint(0, MAX_WRITTEN))]
        failed = num_test * NUM_PROGRAM - sum(own)
        return prompts.critic(NUM_PROGRAM, own, written, {"wrong_answer": failed} if failed else {})


def _passed(solved: int, rng: random.Random) -> tuple[int, bool]:
    """Draw how many programs pass a reward model's test, and whether all of the `solved` correct ones do."""
    if solved and rng.random() < 0.5:
        return min(NUM_PROGRAM, solved + rng.randint(0, 1)), True
    return rng.randint(0, max(1, solved - 1)), False


def worked_out(chain: Chain, line: str) -> str:
    """Write out the value after each operation but the last: the steps of a model that cannot run programs."""
    program, steps = READ[operation_of(chain[0]).takes], []
    for link in chain[:-1]:
        program += f"\n{operation_of(link).code.format(**link[1])}"
        shown = "print(*x)" if operation_of(link).takes == NUMBERS else "print(x)"
        steps.append(answer(f"{program}\n{shown}", line) or "nothing")
    return " -> ".join(steps)


def vary(chain: Chain, harder: bool, rng: random.Random) -> Chain:
    """Make a chain harder by one more operation, or easier by one less.

    A chain that is only an answer becomes another answer.
    """
    last = operation_of(chain[-1])
    if harder:
        between = [o for o in OPERATIONS.values() if o.takes == last.takes == o.gives]
        added = rng.choice([o for o in between if o.name not in {link[0] for link in chain}])
        place = rng.randrange(len(chain))
        return [*chain[:place], [added.name, added.draw(rng)], *chain[place:]]
    if len(chain) > 1:
        removed = rng.randrange(len(chain) - 1)
        return [*chain[:removed], *chain[removed + 1 :]]
    answers = [o for o in OPERATIONS.values() if o.takes == last.takes and o.gives == ANSWER and o.name != last.name]
    chosen = rng.choice(answers)
    return [[chosen.name, chosen.draw(rng)]]
