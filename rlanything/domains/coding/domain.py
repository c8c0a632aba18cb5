"""Coding as a domain: one turn an episode, a program, which the sandbox tries on the problem's tests."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlanything.config.schema import DatasetConfig, SandboxConfig
from rlanything.domains.base import Conversation, Env, Observation, ParsedAction, RejectedTask, Step, TaskError
from rlanything.domains.coding import prompts
from rlanything.domains.coding.demonstrations import demonstrations
from rlanything.domains.coding.env import ProgramEnv
from rlanything.domains.coding.problems import BadProblem, Check, check_row, read_problems
from rlanything.domains.coding.trials import Trials
from rlanything.sandbox.protocol import Verdict
from rlanything.types import Direction, Group, Message, Task

MAX_BROKEN = 3  # times that a program is tried on a generated test where the sandbox breaks
MAX_TOLD = 120  # characters of a problem in a line for people

logger = logging.getLogger(__name__)


class CodingDomain:
    """A task's payload is what `problems.check_row` gives; a variant's also has `root`, the original's question."""

    name = "coding"

    def __init__(self, config: DatasetConfig, sandbox: SandboxConfig) -> None:
        if not config.path:
            raise TaskError("dataset.path: empty; name the folder of <split>.json (data/README.md says what is in it)")
        self.config, self.root = config, Path(config.path)
        self.trials = Trials(sandbox, config.float_tolerance)
        self._tasks: dict[str, list[Task]] = {}

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
        self.trials.start()

    def data_files(self, split: str) -> list[Path]:
        """The split's file."""
        return [self.root / f"{split}.json"]

    def make_env(self, task: Task) -> Env:
        """One attempt at the problem."""
        return ProgramEnv(task, self.own_tests(task), self.trials)

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
            verdict, _ = await self.trials.verdict(action, test, task.payload["time_limit_s"])
            if verdict is not Verdict.SANDBOX_ERROR:
                break
        return None if verdict is Verdict.SANDBOX_ERROR else 1 if verdict is Verdict.OK else -1

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
        self.trials.close()
