"""Coding as a domain: one turn an episode, a program, which the sandbox tries on the problem's tests."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlanything.config import DatasetConfig, SandboxConfig
from rlanything.domains.base import (
    Conversation,
    Env,
    Message,
    Observation,
    ParsedAction,
    RejectedTask,
    SandboxFailure,
    Step,
    TaskError,
)
from rlanything.domains.coding import prompts
from rlanything.domains.coding.compare import same_output
from rlanything.domains.coding.demonstrations import demonstrations
from rlanything.domains.coding.problems import BadProblem, Check, check_row, read_problems
from rlanything.sandbox.pool import Sandbox, SandboxUnavailable
from rlanything.sandbox.protocol import Limits, Verdict
from rlanything.types import Direction, Group, Task

MAX_SHOWN = 300  # characters of an input or output in what the environment answers
MAX_TRIED = 20_000  # programs on tests whose verdicts are remembered: what a step of the loop tries, and some more
MAX_BROKEN = 3  # times that a program is tried on a generated test where the sandbox breaks
MAX_TOLD = 120  # characters of a problem in a line for people

logger = logging.getLogger(__name__)


class CodingDomain:
    """A task's payload is what `problems.check_row` gives; a variant's also has `root`, the original's question."""

    name = "coding"

    def __init__(self, config: DatasetConfig, sandbox: SandboxConfig) -> None:
        if not config.path:
            raise TaskError("dataset.path: empty; name the folder of <split>.json (data/README.md says what is in it)")
        self.config, self.limits = config, sandbox
        self._tasks: dict[str, list[Task]] = {}
        self._sandbox: Sandbox | None = None
        self._tried: dict[tuple[str, Check, float], asyncio.Future[tuple[Verdict, str]]] = {}

    @property
    def sandbox(self) -> Sandbox:
        """Started when it is first needed. Raises TaskError where it cannot: no retry mends that."""
        if self._sandbox is None:
            try:
                self._sandbox = Sandbox(self.limits.num_runner, self.limits.allow_unisolated)
            except SandboxUnavailable as error:
                raise TaskError(str(error)) from error
        return self._sandbox

    def tasks(self, split: str) -> list[Task]:
        """The problems of `<path>/<split>.json`."""
        if split not in self._tasks:
            [path] = self.data_files(split)
            rows, skipped = read_problems(path, self.config.skip_bad)
            if skipped:
                logger.warning("%s: %d bad rows are left out, the first: %s", path, len(skipped), skipped[0])
            self._tasks[split] = [
                Task(str(payload.get("task_id") or f"{split}/{index:06d}"), payload) for index, payload in rows
            ]
        return self._tasks[split]

    def prepare(self, splits: Sequence[str]) -> None:
        """Read the splits' problems, and start the sandbox: TaskError where it cannot isolate programs."""
        for split in splits:
            self.tasks(split)
        _ = self.sandbox

    def data_files(self, split: str) -> list[Path]:
        """The split's file."""
        return [Path(self.config.path) / f"{split}.json"]

    def make_env(self, task: Task) -> Env:
        """One attempt at the problem."""
        return ProgramEnv(self, task)

    def describe(self, task: Task) -> str:
        """The beginning of the statement."""
        line = self.identity(task)
        return line if len(line) <= MAX_TOLD else line[: MAX_TOLD - 1] + "…"

    def kind(self, task: Task) -> str:
        """What the data calls the problem's kind."""
        return str(task.payload.get("kind", "problem"))

    def identity(self, task: Task) -> str:
        """The statement, however it is spaced."""
        return " ".join(str(task.payload["question"]).split())

    def system_message(self) -> Message | None:
        """What is wanted, for models that need it told."""
        return {"role": "system", "content": prompts.POLICY_SYSTEM} if self.config.prompt == "full" else None

    def user_message(self, task: Task, first: Observation, steps: Sequence[Step], history: str) -> Message:
        """The problem; after an attempt, what came of it."""
        return {"role": "user", "content": steps[-1].observation.text if steps else first.text}

    def parse_action(self, text: str, observation: Observation) -> ParsedAction:
        """The program."""
        return prompts.parse_program(text)

    def own_tests(self, task: Task) -> list[Check]:
        """Those of the problem's tests that decide whether a program is correct."""
        return [Check(*test) for test in task.payload["tests"][: self.config.num_test or None]]

    def test_messages(self, task: Task) -> list[Message]:
        """The problem, and the wish for one test."""
        return prompts.test_messages(task.payload, self.config.prompt)

    def parse_test(self, text: str, task: Task) -> tuple[Any, str]:
        """The input and the output."""
        return prompts.parse_test(text)

    async def passes(self, task: Task, action: str, test: Check) -> int | None:
        """+1 where the program answers the input with the output; None where the sandbox broke again and again."""
        for _ in range(MAX_BROKEN):
            verdict, _ = await self.try_program(task, action, test)
            if verdict is not Verdict.SANDBOX_ERROR:
                break
        return None if verdict is Verdict.SANDBOX_ERROR else 1 if verdict is Verdict.OK else -1

    async def try_program(self, task: Task, program: str, test: Check) -> tuple[Verdict, str]:
        """The verdict of a program on a test, and the end of what it wrote (to standard error where it broke).

        Who tries the same program on the same test shares one execution: a policy that is sure of a problem writes one
        program many times.
        """
        time_s = float(task.payload["time_limit_s"])
        key = (program, test, time_s)
        if key not in self._tried:
            if len(self._tried) >= MAX_TRIED:
                self._tried.pop(next(iter(self._tried)))
            self._tried[key] = asyncio.ensure_future(self._execute(program, test, time_s))
            self._tried[key].add_done_callback(partial(self._forget_broken, key))
        return await asyncio.shield(self._tried[key])

    def _forget_broken(self, key: tuple[str, Check, float], done: asyncio.Future[tuple[Verdict, str]]) -> None:
        """Who gives up waiting leaves the execution to those who try again; one that broke is done anew."""
        if done.cancelled() or done.exception() or done.result()[0] is Verdict.SANDBOX_ERROR:
            self._tried.pop(key, None)

    async def _execute(self, program: str, test: Check, time_s: float) -> tuple[Verdict, str]:
        sandbox = self.limits
        limits = Limits(
            time_s, time_s * sandbox.wall_factor + 1, sandbox.memory_mb, sandbox.output_mb, sandbox.num_thread
        )
        source = program.encode("utf-8", "surrogatepass")
        result = await self.sandbox.run(source, test.input.encode("utf-8", "surrogatepass"), limits)
        if result.verdict is not Verdict.OK:
            return result.verdict, _clip(result.error, end=True)
        output = result.output.decode("utf-8", "replace")
        right = same_output(test.output, output, self.config.float_tolerance)
        return Verdict.OK if right else Verdict.WRONG_ANSWER, _clip(output, end=True)

    def reference(self, task: Task) -> str | None:
        """The solution, where the data has one."""
        return task.payload.get("solution")

    def critic(self, group: Group) -> str:
        """How many programs passed each test, of the problem's own and of those that the reward model wrote."""
        turns = [turn for t in group.valid for turn in t.turns]
        tried = [turn.results for turn in turns if turn.results]
        own = [sum(found[i] == Verdict.OK for found in tried) for i in range(min(map(len, tried), default=0))]
        written = [
            (sum(turn.test_scores[j] == 1 for turn in turns), test.score == 1)
            for j, test in enumerate(group.tests)
            if not test.parse_error
        ]
        failures = Counter(v for turn in turns for v in turn.results if v != Verdict.OK)
        return prompts.critic(len(turns), own, written, failures)

    def rewrite_messages(self, task: Task, direction: Direction, accuracy: float, critic: str) -> list[Message]:
        """The original, the problem now, how programs did, and the wish."""
        root = str(task.payload.get("root", task.payload["question"]))
        return prompts.rewrite_messages(root, task.payload, direction, accuracy, critic, self.config.prompt)

    def parse_task(self, text: str, task: Task, direction: Direction, task_id: str) -> Task:
        """The proposed problem. That it can be solved, the gate finds out: some program must."""
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
        variant = Task(task_id, payload | kept | {"root": root}, task.root_id, task.id, direction)
        if self.identity(variant) == self.identity(task):
            raise RejectedTask("unchanged", "the same question again")
        return variant

    def demonstrations(self, role: str, split: str, seed: int) -> Iterator[Conversation]:
        """Solutions (policy), tests (reward) and variants (rewriter) of the problems that have what they are made of.
        Raises TaskError where none has."""
        return demonstrations(self, role, split, random.Random(seed))

    def settle_task(self, task: Task, accepted: bool) -> None:
        """Nothing: the pool holds all of a problem."""

    def close(self) -> None:
        """End the sandbox."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None


class ProgramEnv:
    """One attempt: the statement, then the verdicts of the program that was written."""

    def __init__(self, domain: CodingDomain, task: Task) -> None:
        self.domain, self.task = domain, task

    async def reset(self) -> Observation:
        """The statement."""
        return Observation(prompts.statement(self.task.payload))

    async def step(self, action: str | None) -> Observation:
        """Try the program on all tests. Raises SandboxFailure."""
        if action is None:
            return Observation("No program was found in the answer.", done=True, invalid=True)
        tests = self.domain.own_tests(self.task)
        found = await asyncio.gather(*(self.domain.try_program(self.task, action, test) for test in tests))
        verdicts = [verdict for verdict, _ in found]
        if Verdict.SANDBOX_ERROR in verdicts:
            raise SandboxFailure(found[verdicts.index(Verdict.SANDBOX_ERROR)][1])
        failed = [i for i, verdict in enumerate(verdicts) if verdict is not Verdict.OK]
        text = f"{len(tests) - len(failed)} of {len(tests)} tests passed."
        if failed:
            test, (verdict, said) = tests[failed[0]], found[failed[0]]
            text += (
                f" The first that failed: {verdict.replace('_', ' ')}.\nInput:\n{_clip(test.input)}\nExpected:\n"
                f"{_clip(test.output)}\nFound:\n{said}"
            )
        return Observation(text, (), True, not failed, results=tuple(map(str, verdicts)))

    async def close(self) -> None:
        """Nothing is held."""


def _clip(text: str, end: bool = False) -> str:
    text = text.strip()
    if len(text) <= MAX_SHOWN:
        return text
    return "…" + text[-MAX_SHOWN:] if end else text[:MAX_SHOWN] + "…"
