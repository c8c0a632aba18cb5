"""Harder and easier programming problems, each with tests of its own."""

from collections import Counter

from rlanything.algorithm.consistency import passes_correct
from rlanything.domains.coding import prompts
from rlanything.domains.coding.problems import BadProblem, check_row
from rlanything.domains.parts import RejectedTask, Rewriting, conversation, variant_of
from rlanything.domains.problems import one_line, root_question
from rlanything.sandbox.protocol import Verdict
from rlanything.types import Direction, Group, Message, Task


class CodingRewriting(Rewriting):
    """The rewriter reads the original problem, the problem as it is now, and how programs did."""

    def __init__(self, style: str) -> None:
        self.style = style

    def messages(self, task: Task, direction: Direction, accuracy: float, critic: str) -> list[Message]:
        root = root_question(task)
        original = "" if root == task.payload["question"] else f"Original problem:\n{root}\n\n"
        asked = (
            f"{original}Problem:\n{prompts.statement(task.payload)}\n\nSolved: {accuracy:.0%}\n{critic}\n\n"
            f"Make it {direction}."
        )
        return conversation(prompts.REWRITE_SYSTEM, asked, self.style)

    def parse(self, text: str, task: Task, direction: Direction, task_id: str) -> Task:
        """The proposed problem, validated. The acceptance gate decides if it can be solved. Raises RejectedTask."""
        if len(text) > prompts.MAX_GENERATED_CHARS:
            raise RejectedTask("too_large", f"{len(text)} characters, more than {prompts.MAX_GENERATED_CHARS}")
        row = prompts.parse_problem(text)
        if row is None:
            raise RejectedTask("no_proposal", "no JSON object with a question")
        if function := task.payload.get("function"):
            row |= {"test_method": "function", "fn_name": function}
        try:
            payload = check_row(row)
        except BadProblem as problem:
            raise RejectedTask("contradiction" if "twice" in str(problem) else "schema", str(problem)) from problem
        if len(payload["tests"]) < prompts.MIN_TESTS:
            raise RejectedTask("too_few_tests", f"{len(payload['tests'])}, expected at least {prompts.MIN_TESTS}")
        kept = {name: task.payload[name] for name in ("kind", "time_limit_s", "starter_code") if name in task.payload}
        variant = variant_of(task, payload | kept | {"root": root_question(task)}, direction, task_id)
        if one_line(variant.payload) == one_line(task.payload):
            raise RejectedTask("unchanged", "the same question again")
        return variant

    def critic(self, group: Group) -> str:
        """How many programs passed each test, of the problem's own and of those that the reward model wrote."""
        turns = [turn for t in group.valid for turn in t.turns]
        tried = [turn.results for turn in turns if turn.results]
        own = [sum(verdict == Verdict.OK for verdict in verdicts) for verdicts in zip(*tried, strict=False)]
        written = [
            (sum(score == 1 for score in test.scores.values()), passes_correct(group, test) is True)
            for test in group.shared
            if not test.parse_error
        ]
        failures = Counter(verdict for verdicts in tried for verdict in verdicts if verdict != Verdict.OK)
        return prompts.critic(len(turns), own, written, failures)
