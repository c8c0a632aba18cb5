"""Harder and easier programming problems, each with tests of its own."""

from __future__ import annotations

from collections import Counter

from rlanything.algorithm.consistency import passes_correct
from rlanything.domains.coding import prompts
from rlanything.domains.coding.problems import BadProblem, check_row
from rlanything.domains.parts import RejectedTask, Rewriting, variant_of
from rlanything.sandbox.protocol import Verdict
from rlanything.types import Direction, Group, Message, Task


class CodingRewriting(Rewriting):
    """The rewriter reads the original, the problem as it is now, and how programs did."""

    def __init__(self, style: str) -> None:
        self.style = style

    def messages(self, task: Task, direction: Direction, accuracy: float, critic: str) -> list[Message]:
        """The prompt for one variant."""
        root = str(task.payload.get("root", task.payload["question"]))
        return prompts.rewrite_messages(root, task.payload, direction, accuracy, critic, self.style)

    def parse(self, text: str, task: Task, direction: Direction, task_id: str) -> Task:
        """The proposed problem. Whether it can be solved, the gate finds out: some program must solve it."""
        if len(text) > prompts.MAX_GENERATED_CHARS:
            raise RejectedTask("too_large", f"{len(text)} characters, more than {prompts.MAX_GENERATED_CHARS}")
        found = prompts.parse_problem(text)
        if found is None:
            raise RejectedTask("no_proposal", "no JSON object with a question")
        try:
            payload = check_row(found)
        except BadProblem as problem:
            raise RejectedTask("contradiction" if "twice" in str(problem) else "schema", str(problem)) from problem
        if len(payload["tests"]) < prompts.MIN_TESTS:
            raise RejectedTask("too_few_tests", f"{len(payload['tests'])}, expected at least {prompts.MIN_TESTS}")
        kept = {name: task.payload[name] for name in ("kind", "time_limit_s") if name in task.payload}
        root = task.payload.get("root", task.payload["question"])
        variant = variant_of(task, payload | kept | {"root": root}, direction, task_id)
        if statement_of(variant) == statement_of(task):
            raise RejectedTask("unchanged", "the same question again")
        return variant

    def critic(self, group: Group) -> str:
        """How many programs passed each test, of the problem's own and of those that the reward model wrote."""
        turns = [turn for t in group.valid for turn in t.turns]
        tried = [turn.results for turn in turns if turn.results]
        own = [sum(found[i] == Verdict.OK for found in tried) for i in range(min(map(len, tried), default=0))]
        written = [
            (sum(score == 1 for score in test.scores.values()), passes_correct(group, test) is True)
            for test in group.shared
            if not test.parse_error
        ]
        failures = Counter(v for turn in turns for v in turn.results if v != Verdict.OK)
        return prompts.critic(len(turns), own, written, failures)


def statement_of(task: Task) -> str:
    """The question, however it is spaced."""
    return " ".join(str(task.payload["question"]).split())
