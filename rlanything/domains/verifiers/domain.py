"""Any environment of the library verifiers as a domain: a task is the data of one of its tasks.

Source: github.com/PrimeIntellect-ai/verifiers (release 0.4.0).
"""

import threading
from typing import Any

from rlanything.config.schema import Config
from rlanything.domains.answers import without_thoughts
from rlanything.domains.base import Domain, Env, Observation, ParsedAction
from rlanything.domains.foreign import ForeignRewriting
from rlanything.domains.verifiers.env import VerifiersEnv
from rlanything.domains.verifiers.options import VerifiersOptions
from rlanything.domains.verifiers.service import Service
from rlanything.errors import TaskError
from rlanything.types import Message, Task, system

SHARING = ("train", "eval_in_distribution", "eval_out_of_distribution")  # splits of one taskset, in this order


class VerifiersDomain(Domain):
    """A task's payload is its data, as JSON: the prompt, and what the environment scores by."""

    Options = VerifiersOptions
    options: VerifiersOptions

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._service: Service | None = None
        self._tasks: dict[str, list[Task]] = {}
        self._lock = threading.Lock()
        self.rewriting = ForeignRewriting(self, lambda task: None)

    @property
    def service(self) -> Service:
        """The process of the environment, which starts when it is first asked for. Raises TaskError."""
        with self._lock:
            if self._service is None or self._service.ended:
                self._service = Service(self.options)
            return self._service

    def close(self) -> None:
        """End the environment's process."""
        with self._lock:
            if self._service:
                self._service.close()
            self._service = None

    def tasks(self, split: str) -> list[Task]:
        if split not in self._tasks:
            self._tasks[split] = self._read(split)
        return self._tasks[split]

    def make_env(self, task: Task) -> Env:
        return VerifiersEnv(self.options, self.service, task)

    def opening(self, task: Task, first: Observation) -> list[Message]:
        said = (task.payload.get("system_prompt") or "").strip()
        told = "\n\n".join(text for text in (self.options.instructions, said) if text)
        return [*([system(told)] if told else []), *super().opening(task, first)]

    def parse_action(self, text: str, observation: Observation) -> ParsedAction:
        """The whole response, without its thoughts: the environment reads it itself."""
        return super().parse_action(without_thoughts(text), observation)

    def _read(self, split: str) -> list[Task]:
        options, start = self.options, 0
        if split not in options.splits:
            sharing = [name for name in SHARING if name not in options.splits]
            if split not in sharing:
                raise TaskError(
                    f"dataset.options.splits: found no {split}, expected its configuration, or one of the splits "
                    f"{', '.join(SHARING)}"
                )
            start = options.num_task * sharing.index(split)
        arguments: dict[str, Any] = options.arguments | options.splits.get(split, {})
        found = self.service.tasks(arguments, start, options.num_task)
        if not found:
            raise TaskError(
                f"dataset.options.id={options.id}: no task is left for the split {split} after the first {start}; "
                "lower dataset.options.num_task, or give the split its configuration in dataset.options.splits"
            )
        return [Task(id=f"{split}/{i:06d}", payload=data) for i, data in enumerate(found)]
