"""Reasoning with a code tool as a domain: calls are turns, and a response without a call is the answer.

Source: DemyAgent, arXiv 2510.11701.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from rlanything.config.schema import Config
from rlanything.config.section import Section
from rlanything.domains.base import Domain, Env, Observation, ParsedAction, Step
from rlanything.domains.reasoning import prompts
from rlanything.domains.reasoning.answers import boxed
from rlanything.domains.reasoning.calls import TOOL, read_calls
from rlanything.domains.reasoning.demonstrations import ReasoningDemonstrating
from rlanything.domains.reasoning.env import ANSWER, CALLS, ReasoningEnv, ToolAnswers
from rlanything.domains.reasoning.grading import Grader
from rlanything.domains.reasoning.interpreter import CallLimits, Interpreter
from rlanything.domains.reasoning.problems import read_problems
from rlanything.domains.rows import split_file
from rlanything.errors import TaskError
from rlanything.sandbox.pool import Sandbox
from rlanything.types import Message, Task, Tool, assistant, tool, user

MAX_DESCRIBED = 120  # characters of a problem in a line for people

logger = logging.getLogger(__name__)


class ReasoningOptions(Section):
    """Reasoning's own keys."""

    tool: bool = True
    """Responses may call a code interpreter. Otherwise each response is an answer."""
    max_calls: PositiveInt = 16
    """Calls of an episode that are executed; each further one is answered that none is left."""
    max_output_chars: PositiveInt = Field(2000, ge=100)
    """Longest output of a call that the model sees, its middle left out."""
    call_s: PositiveFloat = 10.0
    """Processor time of a call [s]."""
    session_s: PositiveFloat = 60.0
    """Processor time of all calls of an episode [s], with what it takes to run earlier calls again."""
    grading: Literal["algebra", "text"] = "algebra"
    """How answers are compared that are no numbers. `algebra` takes equal expressions for equal (math-verify, installed
    into the sandbox at the first use); `text` takes only the same text."""
    skip_bad: bool = False
    """Leave out rows that are no problems. Otherwise such a row stops the run."""


class ReasoningDomain(Domain):
    """A task's payload is what `problems.check_row` gives."""

    Options = ReasoningOptions
    options: ReasoningOptions

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not config.dataset.path:
            raise TaskError(
                "dataset.path: empty; name the folder of the splits' files (data/README.md says what is in it)"
            )
        self._tasks: dict[str, list[Task]] = {}
        self._sandbox: Sandbox | None = None
        self.grader = Grader(config.sandbox, self.options.grading == "algebra")
        self.demonstrating = ReasoningDemonstrating(self)
        self.rewriting = None  # a variant's answer would be the rewriter's word alone
        options = self.options
        self.limits = CallLimits(call_s=options.call_s, session_s=options.session_s, max_chars=options.max_output_chars)

    def tasks(self, split: str) -> list[Task]:
        """The problems of the split's file. Raises TaskError."""
        if split not in self._tasks:
            [path] = self.data_files(split)
            rows, skipped = read_problems(path, self.options.skip_bad)
            if skipped:
                logger.warning("%s: %d bad rows are left out, the first: %s", path, len(skipped), skipped[0])
            self._tasks[split] = [
                Task(id=payload.get("task_id") or f"{split}/{index:06d}", payload=payload) for index, payload in rows
            ]
        return self._tasks[split]

    def prepare(self, splits: Sequence[str]) -> None:
        """Read the splits, and start the sandbox. Raises TaskError, too if this machine cannot isolate programs."""
        super().prepare(splits)
        self.grader.start()
        self._interpreter()

    def data_files(self, split: str) -> list[Path]:
        return [split_file(Path(self.config.dataset.path), split)]

    def make_env(self, task: Task) -> Env:
        return ReasoningEnv(task.payload, self._interpreter(), self.grader, self.options.max_calls)

    def describe(self, task: Task) -> str:
        line = " ".join(task.payload["question"].split())
        return line if len(line) <= MAX_DESCRIBED else line[: MAX_DESCRIBED - 1] + "…"

    def kind(self, task: Task) -> str:
        return str(task.payload["kind"])

    def tools(self) -> list[Tool]:
        """The tool's schema; none in the compact style, for models that were taught to call it."""
        return [TOOL] if self.options.tool and self.config.dataset.prompt != "compact" else []

    def opening(self, task: Task, first: Observation) -> list[Message]:
        packages = self.config.sandbox.packages if self.options.tool else None
        return [user(prompts.asked(task.payload, packages, self.config.dataset.prompt))]

    def answer(self, observation: Observation) -> list[Message]:
        assert isinstance(observation, ToolAnswers)  # after all else an episode is over
        return [tool(output) for output in observation.outputs]

    def retold(self, task: Task, first: Observation, steps: Sequence[Step]) -> list[Message]:
        """The conversation anew: the template decides which thoughts of past turns it keeps."""
        told = [[assistant(step.response), *self.answer(step.observation)] for step in steps]
        return [*self.opening(task, first), *chain.from_iterable(told)]

    def parse_action(self, text: str, observation: Observation) -> ParsedAction:
        if self.options.tool and (calls := read_calls(text)):
            errors = [call.error for call in calls if call.error]
            given = [{"error": call.error} if call.error else {"code": call.code} for call in calls]
            kind = "unreadable" if len(errors) == len(calls) else "call"
            return ParsedAction(json.dumps({CALLS: given}), errors[0] if errors else "", kind=kind)
        answer = boxed(text)
        if answer is None:
            return ParsedAction(None, "neither a call of the tool nor a box with an answer", kind="void")
        return ParsedAction(json.dumps({ANSWER: answer}), kind="answer")

    def script(self, task: Task) -> Iterator[str] | None:
        """The calls of the row's solution, and the answer."""
        if "cells" not in task.payload:
            return None
        cells = task.payload["cells"] if self.options.tool else []
        calls = [json.dumps({CALLS: [{"code": cell}]}) for cell in cells]
        return iter([*calls, json.dumps({ANSWER: task.payload["answer"]})])

    def typed_action(self, text: str, observation: Observation) -> str:
        """`= ANSWER` answers; anything else is code for the tool."""
        if text.startswith("="):
            return json.dumps({ANSWER: text[1:].strip()})
        if not self.options.tool:
            raise ValueError("there is no tool; answer with = and the answer")
        return json.dumps({CALLS: [{"code": text}]})

    def close(self) -> None:
        self.grader.close()
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _interpreter(self) -> Interpreter | None:
        """A new session; None without the tool."""
        if not self.options.tool:
            return None
        config = self.config.sandbox
        if self._sandbox is None:
            self._sandbox = Sandbox(config.num_runner, config.allow_unisolated, config.packages)
        return Interpreter(sandbox=self._sandbox, config=config, limits=self.limits)
