"""Coding as a domain: one turn an episode, a program, which the sandbox tries on the problem's tests."""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import NonNegativeFloat, NonNegativeInt

from rlanything.config.roles import most_tasks
from rlanything.config.schema import Config
from rlanything.domains.base import Env, Observation, ParsedAction, SandboxFailure
from rlanything.domains.coding import prompts
from rlanything.domains.coding.demonstrations import CodingDemonstrating
from rlanything.domains.coding.judging import CodingJudging
from rlanything.domains.coding.problems import Check, check_row, rules_of
from rlanything.domains.coding.rewriting import CodingRewriting
from rlanything.domains.coding.trials import Trials, clip, describe
from rlanything.domains.parts import conversation
from rlanything.domains.problems import ProblemDomain, ProblemOptions
from rlanything.sandbox.protocol import Verdict
from rlanything.types import Message, Task


class CodingOptions(ProblemOptions):
    """Coding's own keys."""

    num_test: NonNegativeInt = 0
    """Tests of a problem that decide whether a program is correct, the first ones. 0 takes all."""
    time_limit_s: NonNegativeFloat = 0.0
    """Processor time of a program on a test, in the place of the row's own limit [s]. 0 takes the row's."""
    float_tolerance: NonNegativeFloat = 1e-6
    """Largest error of an expected number with a decimal point or exponent, absolute or relative."""
    numbers: Literal["value", "text"] = "value"
    """`value` takes 10.0 for 10, as most judges do. `text` takes only what is expected, to the letter."""


class ProgramEnv(Env):
    """One attempt: the statement, then the verdicts of the program that was written."""

    def __init__(self, task: Task, tests: Sequence[Check], trials: Trials) -> None:
        self.task, self.tests, self.trials = task, tests, trials

    async def reset(self) -> Observation:
        return Observation(prompts.statement(self.task.payload))

    async def step(self, action: str | None) -> Observation:
        """Try the program on all tests; the reward is the share that it passes. Raises SandboxFailure."""
        if action is None:
            return Observation("No program was found in the answer.", done=True, invalid=True, reward=0.0)
        tests, time_s, rules = self.tests, self.task.payload["time_limit_s"], rules_of(self.task.payload)
        found = await asyncio.gather(*(self.trials.verdict(action, test, time_s, rules) for test in tests))
        verdicts = [verdict for verdict, _ in found]
        if Verdict.SANDBOX_ERROR in verdicts:
            raise SandboxFailure(found[verdicts.index(Verdict.SANDBOX_ERROR)][1])
        failed = [i for i, verdict in enumerate(verdicts) if verdict is not Verdict.OK]
        text = f"{len(tests) - len(failed)} of {len(tests)} tests passed."
        if failed:
            test, (verdict, said) = tests[failed[0]], found[failed[0]]
            text += (
                f" The first that failed: {verdict.replace('_', ' ')}.\nInput:\n{clip(test.input)}\nExpected:\n"
                f"{clip(test.output)}\nFound:\n{said}"
            )
        passed = 1 - len(failed) / len(tests)
        return Observation(
            text, done=True, success=not failed, reward=passed, results=tuple(describe(*f) for f in found)
        )


class CodingDomain(ProblemDomain):
    """A task's payload is what `problems.check_row` gives; a variant's also has `root`, the original's question."""

    Options = CodingOptions
    options: CodingOptions
    judging: CodingJudging
    rewriting: CodingRewriting

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.trials = Trials(self.programs, self.options.float_tolerance, self.options.numbers == "value")
        self.judging = CodingJudging(config.dataset.prompt, self.trials)
        self.rewriting = CodingRewriting(config.dataset.prompt)
        self.demonstrating = CodingDemonstrating(self)

    def check_row(self, row: object) -> dict[str, Any]:
        payload = check_row(row)
        return payload | {"time_limit_s": self.options.time_limit_s or payload["time_limit_s"]}

    def make_env(self, task: Task) -> Env:
        return ProgramEnv(task, self.own_tests(task), self.trials)

    def own_tests(self, task: Task) -> list[Check]:
        """The problem's tests that decide if a program is correct."""
        return [Check(*test) for test in task.payload["tests"][: self.options.num_test or None]]

    def executions(self, tasks: Sequence[Task]) -> int:
        """Every program on the problem's own tests, and on those that the reward model writes."""
        own = max((len(self.own_tests(task)) for task in tasks), default=0)
        episodes = most_tasks(self.config) * self.config.rollout.num_rollout_per_trial
        return episodes * (own + self.config.reward.num_evaluation)

    def opening(self, task: Task, first: Observation) -> list[Message]:
        system = prompts.policy_system(task.payload, self.config.sandbox.packages)
        return conversation(system, first.text, self.config.dataset.prompt)

    def parse_action(self, text: str, observation: Observation) -> ParsedAction:
        return prompts.parse_program(text)
