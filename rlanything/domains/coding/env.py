"""The coding domain's environment: one turn, a program, which the sandbox tries on the problem's tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rlanything.domains.base import Env, Observation, SandboxFailure
from rlanything.domains.coding import prompts
from rlanything.domains.coding.problems import Check
from rlanything.domains.coding.trials import Trials, clip
from rlanything.sandbox.protocol import Verdict
from rlanything.types import Task


class ProgramEnv(Env):
    """One attempt: the statement, then the verdicts of the program that was written."""

    def __init__(self, task: Task, tests: Sequence[Check], trials: Trials) -> None:
        self.task, self.tests, self.trials = task, tests, trials

    async def reset(self) -> Observation:
        """The statement."""
        return Observation(prompts.statement(self.task.payload))

    async def step(self, action: str | None) -> Observation:
        """Try the program on all tests; the reward is the share that it passes. Raises SandboxFailure."""
        if action is None:
            return Observation("No program was found in the answer.", done=True, invalid=True, reward=0.0)
        tests, time_s = self.tests, self.task.payload["time_limit_s"]
        found = await asyncio.gather(*(self.trials.verdict(action, test, time_s) for test in tests))
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
        passed = 1 - len(failed) / len(tests) if tests else 1.0
        return Observation(text, done=True, success=not failed, reward=passed, results=tuple(map(str, verdicts)))
