"""The base of domains of problems: rows of files become tasks, and programs of a policy run in the sandbox."""

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rlanything.config.schema import Config
from rlanything.config.section import Section
from rlanything.domains.base import Domain
from rlanything.domains.programs import Programs
from rlanything.domains.rows import read_checked, split_file
from rlanything.errors import TaskError
from rlanything.types import Task

MAX_DESCRIBED = 120  # characters of a problem in a line for people

logger = logging.getLogger(__name__)


class ProblemOptions(Section):
    """Keys of every domain of problems."""

    skip_bad: bool = False
    """Leave out rows that are no problems. Otherwise such a row stops the run."""


class ProblemDomain(Domain):
    """A task's payload is what `check_row` gives, with a `question`; a variant's also has `root`, the question of the
    problem that it descends from."""

    Options: ClassVar[type] = ProblemOptions
    options: ProblemOptions

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not config.dataset.path:
            raise TaskError(
                "dataset.path: empty; name the folder of the splits' files (data/README.md says what is in it)"
            )
        self._tasks: dict[str, list[Task]] = {}
        self.programs = Programs(config.sandbox)

    @abstractmethod
    def check_row(self, row: object) -> dict[str, Any]:
        """Check a row and return it as a payload. Raises BadProblem."""

    def tasks(self, split: str) -> list[Task]:
        """The problems of the split's file. Raises TaskError."""
        if split not in self._tasks:
            [path] = self.data_files(split)
            rows, skipped = read_checked(path, "question", self.check_row, self.options.skip_bad)
            if skipped:
                logger.warning("%s: %d bad rows are left out, the first: %s", path, len(skipped), skipped[0])
            self._tasks[split] = [
                Task(id=str(payload.get("task_id") or f"{split}/{index:06d}"), payload=payload)
                for index, payload in rows
            ]
        return self._tasks[split]

    def prepare(self, splits: Sequence[str]) -> None:
        """Read the splits, and start the sandbox. Raises TaskError, too if this machine cannot isolate programs."""
        super().prepare(splits)
        self.programs.start()

    def data_files(self, split: str) -> list[Path]:
        return [split_file(Path(self.config.dataset.path), split)]

    def describe(self, task: Task) -> str:
        return short(task.payload["question"], MAX_DESCRIBED)

    def kind(self, task: Task) -> str:
        return str(task.payload.get("kind", "problem"))

    def identity(self, task: Task) -> str:
        return one_line(task.payload)

    def close(self) -> None:
        self.programs.close()


def one_line(payload: Mapping[str, Any]) -> str:
    """The question in one line: two problems are the same if only its white space differs."""
    return " ".join(str(payload["question"]).split())


def short(text: str, most: int) -> str:
    """A text in one line of at most `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def root_question(task: Task) -> str:
    """The question of the problem that this one descends from."""
    return str(task.payload.get("root", task.payload["question"]))
