"""Reasoning with a code tool as a domain: calls are turns, and a response without a call is the answer.

Source: DemyAgent, arXiv 2510.11701.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from rlanything.config.roles import most_tasks
from rlanything.config.schema import Config
from rlanything.domains.answers import without_thoughts
from rlanything.domains.base import Env, Observation, ParsedAction, Step
from rlanything.domains.coding.prompts import parse_program
from rlanything.domains.coding.trials import Trials
from rlanything.domains.problems import ProblemDomain, ProblemOptions
from rlanything.domains.programs import START_S
from rlanything.domains.reasoning import prompts
from rlanything.domains.reasoning.answers import boxed, choice, normal, number
from rlanything.domains.reasoning.calls import ARGUMENT, TOOL, TOOL_NAME, Call, read_calls
from rlanything.domains.reasoning.demonstrations import ReasoningDemonstrating
from rlanything.domains.reasoning.env import CALLS, ReasoningEnv, Told, ToolAnswers
from rlanything.domains.reasoning.grading import Grader
from rlanything.domains.reasoning.interpreter import CallLimits, Interpreter
from rlanything.domains.reasoning.judging import ReasoningJudging
from rlanything.domains.reasoning.problems import check_row, is_choice
from rlanything.domains.reasoning.rewriting import ReasoningRewriting
from rlanything.domains.reasoning.verdicts import ANSWER, PROGRAM, Verdicts
from rlanything.errors import ConfigError, TaskError
from rlanything.types import Message, Task, Tool, assistant, tool, user

FLOAT_TOLERANCE = 1e-6  # of numbers that a program writes


class ReasoningOptions(ProblemOptions):
    """Reasoning's own keys."""

    tool: bool = True
    """Responses may call a code interpreter. Otherwise each response is an answer."""
    max_calls: PositiveInt = 16
    """Calls of an episode that are executed; each further one is answered that none is left."""
    max_output_chars: PositiveInt = Field(2000, ge=100)
    """Longest output of a call that the model sees, its middle left out."""
    call_s: PositiveFloat = 10.0
    """Processor time of a call [s]."""
    session_s: PositiveFloat = 30.0
    """Processor time of all calls of an episode [s], with what it takes to run earlier calls again. A call that sleeps
    is charged, too: the time that it took over `sandbox.wall_factor`."""
    grading: Literal["algebra", "text"] = "algebra"
    """How answers are compared that are no numbers. `algebra` takes equal expressions for equal (math-verify, installed
    into the sandbox at the first use); `text` takes only the same text."""


class ReasoningDomain(ProblemDomain):
    """A task's payload is what `problems.check_row` gives; a variant's also has `root`, the original's question."""

    Options = ReasoningOptions
    options: ReasoningOptions

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        options = self.options
        self.grader = Grader(config.sandbox, options.grading == "algebra")
        self.verdicts = Verdicts(self.grader, Trials(self.programs, FLOAT_TOLERANCE))
        self.judging = ReasoningJudging(config.dataset.prompt)
        self.rewriting = ReasoningRewriting(config.dataset.prompt, self.programs, options.call_s)
        self.demonstrating = ReasoningDemonstrating(self)
        self.limits = CallLimits(call_s=options.call_s, session_s=options.session_s, max_chars=options.max_output_chars)

    def check_row(self, row: object) -> dict[str, Any]:
        return check_row(row)

    def prepare(self, splits: Sequence[str]) -> None:
        """Read the splits, and start the sandboxes. Raises TaskError, too if this machine cannot isolate programs."""
        if self.options.tool:
            self._check_time()
        super().prepare(splits)
        self.grader.start()

    def _check_time(self) -> None:
        """All calls of an episode may be in one response, which is one step of the environment. Raises ConfigError."""
        limit, options = self.config.rollout.env_timeout_s, self.options
        slowest = options.session_s * self.config.sandbox.wall_factor + options.max_calls * START_S
        if limit <= slowest:
            raise ConfigError(
                f"rollout.env_timeout_s: found {limit:g}, expected more than {slowest:g}, which the calls of one "
                "response may take (dataset.options.session_s x sandbox.wall_factor, and a second for each of "
                "max_calls); otherwise a policy that sleeps counts as a broken sandbox, and is not blamed"
            )

    def make_env(self, task: Task) -> Env:
        session = Interpreter(programs=self.programs, limits=self.limits) if self.options.tool else None
        return ReasoningEnv(task.payload, session, self.verdicts, self.options.max_calls)

    def same_answer(self, task: Task, answer: str) -> str:
        """A letter, an exact number, or the text without what never matters."""
        plain = normal(answer)
        if is_choice(task.payload):
            return choice(answer) or plain
        value = number(plain)
        return plain if value is None else str(value)

    def tools(self) -> list[Tool]:
        """The tool's schema; none in the compact style, for models that were taught to call it."""
        return [TOOL] if self.options.tool and self.config.dataset.prompt != "compact" else []

    def check_calls(self, written: Callable[[Message], str]) -> None:
        code = "print(6 * 7)"
        function = {"name": TOOL_NAME, "arguments": {ARGUMENT: code}}
        text = written(assistant("", [{"type": "function", "id": "call00001", "function": function}]))
        if read_calls(text) != [Call(code=code)]:
            raise TaskError(
                f"model.policy: its chat template writes a tool call as {text.strip()!r:.200}, and dataset.domain="
                "reasoning reads the hermes form (<tool_call>{...}</tool_call>) and the XML form of Qwen "
                "(<tool_call><function=...>); use a model of one of them, or set dataset.options.tool=false"
            )

    def executions(self, tasks: Sequence[Task]) -> int:
        """The calls of the tool, one a turn."""
        rollout = self.config.rollout
        turns = min(rollout.max_interaction_step, self.options.max_calls)
        return most_tasks(self.config) * rollout.num_rollout_per_trial * turns if self.options.tool else 0

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
        key, asked = (PROGRAM, "program") if _asks_program(observation) else (ANSWER, "box with an answer")
        answer = parse_program(without_thoughts(text)).action if key == PROGRAM else boxed(text)
        if answer is None:
            return ParsedAction(None, f"neither a call of the tool nor a {asked}", kind="void")
        return ParsedAction(json.dumps({key: answer}), kind="answer")

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
            return json.dumps({PROGRAM if _asks_program(observation) else ANSWER: text[1:].strip()})
        if not self.options.tool:
            raise ValueError("there is no tool; answer with = and the answer")
        return json.dumps({CALLS: [{"code": text}]})

    def close(self) -> None:
        super().close()
        self.grader.close()


def _asks_program(observation: Observation) -> bool:
    return isinstance(observation, Told) and observation.program
