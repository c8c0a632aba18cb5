"""The verdict on a final answer: a value, the letter of a choice, or a program that its problem's tests try."""

import asyncio
from collections.abc import Mapping
from typing import Any

from rlanything.domains.base import SandboxFailure
from rlanything.domains.coding.problems import Check, rules_of
from rlanything.domains.coding.trials import Trials, describe
from rlanything.domains.reasoning.answers import same_choice
from rlanything.domains.reasoning.grading import Grader
from rlanything.domains.reasoning.problems import is_choice, is_program
from rlanything.sandbox.protocol import Verdict

ANSWER, PROGRAM = "answer", "program"  # keys of a final answer


class Verdicts:
    """Grades final answers."""

    def __init__(self, grader: Grader, trials: Trials) -> None:
        self.grader, self.trials = grader, trials

    async def of(self, problem: Mapping[str, Any], given: Mapping[str, str]) -> tuple[str, ...]:
        """Grade a box or a program, as the problem asks. Returns "ok (RULE)" or "wrong (RULE)" of a box, and of a
        program "ok" or what is wrong for each test. Raises SandboxFailure."""
        if is_program(problem):
            return await self._of_program(problem, given[PROGRAM])
        answer, truth = given[ANSWER], problem["answer"]
        grade = same_choice(answer, truth) if is_choice(problem) else await self.grader.grade(answer, truth)
        return (f"{'ok' if grade.right else 'wrong'} ({grade.rule})",)

    async def _of_program(self, problem: Mapping[str, Any], program: str) -> tuple[str, ...]:
        tests, time_s, rules = problem["tests"], problem["time_limit_s"], rules_of(problem)
        found = await asyncio.gather(*(self.trials.verdict(program, Check(*test), time_s, rules) for test in tests))
        if broken := [said for verdict, said in found if verdict is Verdict.SANDBOX_ERROR]:
            raise SandboxFailure(broken[0])
        return tuple(describe(*one) for one in found)
