"""What a supervised warm start learns from: solutions, tests and variants of problems that have solutions or chains."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlanything.domains.base import Conversation, TaskError
from rlanything.domains.coding import generator, prompts
from rlanything.domains.coding.problems import Check
from rlanything.types import Direction, Message, Task

if TYPE_CHECKING:
    from rlanything.domains.coding.domain import CodingDomain

NEEDS = {"policy": "solution", "reward": "solution", "rewriter": "chain"}  # what a row must have
NUM_PROGRAM, MAX_WRITTEN = 8, 8  # programs, and tests of a reward model, in a made-up critic


def demonstrations(domain: CodingDomain, role: str, split: str, rng: random.Random) -> Iterator[Conversation]:
    """An endless stream for a role. Raises TaskError where no row has what it needs."""
    tasks = [task for task in domain.tasks(split) if task.payload.get(NEEDS[role])]
    if not tasks:
        raise TaskError(
            f"{domain.data_files(split)[0]}: no problem has a {NEEDS[role]}, which demonstrations for the {role} are "
            "made of; give conversations of your own (data=FILE.jsonl)"
        )
    return _stream(domain, role, tasks, rng)


def _stream(domain: CodingDomain, role: str, tasks: list[Task], rng: random.Random) -> Iterator[Conversation]:
    while True:
        task = rng.choice(tasks)
        messages, answer = ROLES[role](domain, task, rng)
        trained = [False] * len(messages) + [True]
        yield Conversation([*messages, {"role": "assistant", "content": answer}], trained, task.id)


def _policy(domain: CodingDomain, task: Task, rng: random.Random) -> tuple[list[Message], str]:
    opening = [domain.system_message(), {"role": "user", "content": prompts.statement(task.payload)}]
    return [m for m in opening if m], prompts.program_response("", str(domain.reference(task)))


def _reward(domain: CodingDomain, task: Task, rng: random.Random) -> tuple[list[Message], str]:
    chain: generator.Chain = task.payload.get("chain") or []
    small = generator.draw_tests(chain, rng, 1, small=True) if chain else None
    if not small:
        return domain.test_messages(task), prompts.test_response(Check(*rng.choice(task.payload["tests"])))
    return domain.test_messages(task), prompts.test_response(small[0], generator.worked_out(chain, small[0].input))


def _rewriter(domain: CodingDomain, task: Task, rng: random.Random) -> tuple[list[Message], str]:
    while True:
        harder = rng.random() < 0.5
        chain = generator.vary(task.payload["chain"], harder, rng)
        tests = generator.draw_tests(chain, rng, prompts.MIN_TESTS, small=True)
        if tests is not None:
            break
    solved = rng.randint(NUM_PROGRAM - 1, NUM_PROGRAM) if harder else rng.randint(0, 1)
    own = [min(NUM_PROGRAM, solved + rng.randint(0, 1)) for _ in domain.own_tests(task)]
    written = [_passed(solved, rng) for _ in range(rng.randint(0, MAX_WRITTEN))]
    failed = len(own) * NUM_PROGRAM - sum(own)
    critic = prompts.critic(NUM_PROGRAM, own, written, {"wrong_answer": failed} if failed else {})
    direction = Direction.HARDER if harder else Direction.EASIER
    asked = domain.rewrite_messages(task, direction, solved / NUM_PROGRAM, critic)
    steps = [generator.worked_out(chain, test.input) for test in tests]
    return asked, prompts.problem_response(generator.statement(chain, rng), tests, steps)


def _passed(solved: int, rng: random.Random) -> tuple[int, bool]:
    """How many programs a reward model's test was passed by, and whether all of the `solved` correct ones were."""
    if solved and rng.random() < 0.5:
        return min(NUM_PROGRAM, solved + rng.randint(0, 1)), True
    return rng.randint(0, max(1, solved - 1)), False


ROLES = {"policy": _policy, "reward": _reward, "rewriter": _rewriter}
