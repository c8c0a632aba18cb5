"""One problem: tool calls, each answered, until a response without a call, whose box is the answer."""

import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from rlanything.domains.base import Env, Observation
from rlanything.domains.reasoning.interpreter import Interpreter
from rlanything.domains.reasoning.problems import is_program
from rlanything.domains.reasoning.prompts import stated
from rlanything.domains.reasoning.verdicts import ANSWER, Verdicts
from rlanything.types import Score, is_passed

CALLS = "calls"  # key of an action that calls; an answer has those of `verdicts`


@dataclass(frozen=True)
class Told(Observation):
    """An observation that knows what answer is asked for."""

    _: KW_ONLY
    program: bool = False
    """The answer is a program; else it is what a box holds."""


@dataclass(frozen=True)
class ToolAnswers(Told):
    """The tool's answers to the calls of one response."""

    _: KW_ONLY
    outputs: tuple[str, ...] = ()
    """One text for each call, in order."""


class ReasoningEnv(Env):
    """Actions are JSON: `{"calls": [{"code": ...} or {"error": ...}, ...]}`, or an answer: `{"answer": ...}`, of a
    problem with tests `{"program": ...}`.

    None is a response with neither: it ends the episode unsolved, because nothing could be said to it. `interpreter` is
    None if there is no tool. If the row tells what a solution's calls show, a turn is progress if it finds one of these
    values for the first time, or gives the right answer.
    """

    def __init__(
        self, problem: Mapping[str, Any], interpreter: Interpreter | None, verdicts: Verdicts, max_calls: int
    ) -> None:
        self.problem, self.interpreter, self.verdicts, self.max_calls = problem, interpreter, verdicts, max_calls
        self.num_calls = 0
        self.labelled = "outputs" in problem
        self.due = list(zip(problem.get("outputs", ()), problem.get("cells", ()), strict=True))  # what is still to find
        self.known = set[str]()
        self.answer: str | None = None

    async def reset(self) -> Observation:
        return Told(stated(self.problem), program=is_program(self.problem))

    async def step(self, action: str | None) -> Observation:
        """Execute calls, or grade an answer. Raises SandboxFailure."""
        due = self._due()
        if action is None:
            return Observation("", done=True, invalid=True, results=("void",), label=self._label(False), reason=due)
        given = json.loads(action)
        if CALLS not in given:
            self.answer = given.get(ANSWER)
            results = await self.verdicts.of(self.problem, given)
            right = all(map(is_passed, results))
            label = self._label(right)
            return Observation("", done=True, success=right, results=results, label=label, reason=due)
        answered = [await self._answer(call) for call in given[CALLS]]
        outputs = tuple(output for output, _ in answered)
        found = [output for output in outputs if self._finds(output)]
        return ToolAnswers(
            "\n".join(outputs),
            outputs=outputs,
            results=tuple(result for _, result in answered),
            invalid=all("error" in call for call in given[CALLS]),
            label=self._label(bool(found)),
            reason=due,
            program=is_program(self.problem),
        )

    async def score(self, last: Observation) -> Score:
        return Score(success=last.success, answer=None if is_program(self.problem) else self.answer or "")

    def _label(self, progress: bool) -> int | None:
        return (1 if progress else -1) if self.labelled else None

    def _due(self) -> str:
        """The solution's next step: the first cell whose output is not known, or the answer."""
        return self.due[0][1] if self.due else str(self.problem.get("answer", ""))

    def _finds(self, output: str) -> bool:
        """Take an output off those that are due; False if it is none of them. One that was found before, and is due
        again, must be the next."""
        due = self.due[:1] if output in self.known else self.due
        found = next((pair for pair in due if pair[0] == output), None)
        if found is None:
            return False
        self.due.remove(found)
        self.known.add(output)
        return True

    async def _answer(self, call: Mapping[str, str]) -> tuple[str, str]:
        """The tool's answer to one call, and how it ended."""
        if "error" in call:
            return f"Error: {call['error']}", "unreadable"
        assert self.interpreter
        if self.num_calls >= self.max_calls:
            return "Error: no calls are left; give the answer.", "no_calls_left"
        self.num_calls += 1
        return await self.interpreter.call(call["code"])
