"""Coding as a domain: one turn an episode, a program, which the sandbox tries on the problem's tests."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from rlanything.config.schema import Config
from rlanything.domains.base import Domain, Env, Observation, ParsedAction
from rlanything.domains.coding import prompts
from rlanything.domains.coding.demonstrations import CodingDemonstrating
from rlanything.domains.coding.env import ProgramEnv
from rlanything.domains.coding.judging import CodingJudging
from rlanything.domains.coding.options import CodingOptions
from rlanything.domains.coding.problems import read_problems
from rlanything.domains.coding.rewriting import CodingRewriting, statement_of
from rlanything.domains.coding.trials import Trials
from rlanything.domains.parts import conversation
from rlanything.errors import TaskError
from rlanything.types import Message, Task

MAX_DESCRIBED = 120  # characters of a problem in a line for people

logger = logging.getLogger(__name__)


class CodingDomain(Domain):
    """A task's payload is what `problems.check_row` gives; a variant's also has `root`, the original's question."""

    Options = CodingOptions
    options: CodingOptions

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not config.dataset.path:
            raise TaskError("dataset.path: empty; name the folder of <split>.json (data/README.md says what is in it)")
        style = config.dataset.prompt
        self._root, self._tasks = Path(config.dataset.path), dict[str, list[Task]]()
        self.trials = Trials(config.sandbox, self.options.float_tolerance)
        self.judging, self.rewriting = CodingJudging(style, self.trials), CodingRewriting(style)
        self.demonstrating = CodingDemonstrating(self)

    @property
    def root(self) -> Path:
        """The folder of problems."""
        return self._root

    def tasks(self, split: str) -> list[Task]:
        """The problems of `<path>/<split>.json`. Raises TaskError."""
        if split not in self._tasks:
            [path] = self.data_files(split)
            rows, skipped = read_problems(path, self.options.skip_bad)
            if skipped:
                logger.warning("%s: %d bad rows are left out, the first: %s", path, len(skipped), skipped[0])
            self._tasks[split] = [
                Task(id=str(payload.get("task_id") or f"{split}/{index:06d}"), payload=payload)
                for index, payload in rows
            ]
        return self._tasks[split]

    def prepare(self, splits: Sequence[str]) -> None:
        """Read the splits' problems, and start the sandbox. Raises TaskError if it cannot isolate programs."""
        super().prepare(splits)
        self.trials.start()

    def data_files(self, split: str) -> list[Path]:
        """The split's file."""
        return [self._root / f"{split}.json"]

    def make_env(self, task: Task) -> Env:
        """One attempt at the problem."""
        return ProgramEnv(task, prompts.own_tests(task, self.options.num_test), self.trials)

    def describe(self, task: Task) -> str:
        """The beginning of the statement."""
        line = self.identity(task)
        return line if len(line) <= MAX_DESCRIBED else line[: MAX_DESCRIBED - 1] + "…"

    def kind(self, task: Task) -> str:
        """What the data calls the problem's kind."""
        return str(task.payload.get("kind", "problem"))

    def identity(self, task: Task) -> str:
        """The statement, however it is spaced."""
        return statement_of(task)

    def opening(self, task: Task, first: Observation) -> list[Message]:
        """The problem, after what is wanted for models that need it told."""
        return conversation(prompts.POLICY_SYSTEM, first.text, self.config.dataset.prompt)

    def parse_action(self, text: str, observation: Observation) -> ParsedAction:
        """The program."""
        return prompts.parse_program(text)

    def close(self) -> None:
        """End the sandbox."""
        self.trials.close()
