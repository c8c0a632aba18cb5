"""The Domain protocol: all that the loop must know of a domain, and nothing that a domain must know of the loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rlanything.errors import ClearError
from rlanything.types import Direction, Group, Message, Task, Tool, Trajectory


class TaskError(ClearError, ValueError):
    """A task that cannot be used: the message names the task or file, what was found and what to do."""


class SandboxFailure(RuntimeError):
    """The sandbox broke while it executed a program: an accident of the infrastructure, which a retry may mend."""


class RejectedTask(ValueError):
    """A proposed task that fails validation. `reason` is a short word that metrics count."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(frozen=True)
class Observation:
    """What the environment answers.

    `actions` are the admissible ones where the domain can list them. `invalid` marks an answer to an action
    that did nothing because it was malformed or not admissible. `label` is +1 where the last action was
    progress by the domain's own measure, -1 where it was not, None where the domain cannot tell. `results` are the
    verdicts of several checks of the action, "ok" for one that it passes.
    """

    text: str
    actions: tuple[str, ...] = ()
    done: bool = False
    success: bool = False
    invalid: bool = False
    label: int | None = None
    images: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


@dataclass(frozen=True)
class ParsedAction:
    """`action` is None where the text holds none; `error` then says why."""

    action: str | None
    error: str = ""


@dataclass
class Step:
    """One entry of an episode's history, as prompts are rendered from: what the policy wrote, and the answer."""

    response: str
    action: str | None
    observation: Observation = field(default_factory=lambda: Observation(""))


@dataclass
class Conversation:
    """A demonstration. `trained[i]` says whether message i (an assistant's) is learned; conversations of one `key`
    share their beginning, which packing merges. `tools` are those that the assistant may call."""

    messages: list[Message]
    trained: list[bool]
    key: str = ""
    tools: Sequence[Tool] = ()


class Env(Protocol):
    """One episode's environment."""

    async def reset(self) -> Observation:
        """Start the episode."""
        ...

    async def step(self, action: str | None) -> Observation:
        """Take one action. None (unparsable output) is answered like any inadmissible action."""
        ...

    async def close(self) -> None:
        """Release what the environment holds."""
        ...


class Domain(Protocol):
    """Everything that knows a domain. Implementations hold no state of an episode.

    A domain is a JudgedDomain, whose turns the reward model judges, or a ProgramDomain, for which it writes unit tests.
    """

    name: str
    root: Path  # the folder of its data

    def tasks(self, split: str) -> list[Task]:
        """All tasks of a split. Raises TaskError naming the folder where there is none."""
        ...

    def prepare(self, splits: Sequence[str]) -> None:
        """Read these splits and start what their episodes need: what is missing is found before models are loaded.
        Raises TaskError."""
        ...

    def data_files(self, split: str) -> list[Path]:
        """The files that a split's tasks are read from."""
        ...

    def make_env(self, task: Task) -> Env:
        """A fresh environment for one episode of the task."""
        ...

    def describe(self, task: Task) -> str:
        """The task in one sentence, for people."""
        ...

    def kind(self, task: Task) -> str:
        """The task's type, by which evaluation is broken down."""
        ...

    def identity(self, task: Task) -> str:
        """What no two tasks of a pool may share."""
        ...

    def system_message(self) -> Message | None:
        """What opens every policy conversation."""
        ...

    def user_message(self, task: Task, first: Observation, steps: Sequence[Step], history: str) -> Message:
        """The user message before the next turn. `history` is "append_only" (only what is new since the last
        turn) or "paper" (task, past steps and current observation rendered anew)."""
        ...

    def parse_action(self, text: str, observation: Observation) -> ParsedAction:
        """The action in a response."""
        ...

    def rewrite_messages(self, task: Task, direction: Direction, accuracy: float, critic: str) -> list[Message]:
        """What the rewriter reads to propose a harder or easier variant of the task."""
        ...

    def parse_task(self, text: str, task: Task, direction: Direction, task_id: str) -> Task:
        """The proposed variant, validated. Raises RejectedTask."""
        ...

    def demonstrations(self, role: str, split: str, seed: int) -> Iterator[Conversation]:
        """An endless stream of demonstrations for a role (policy, reward, rewriter) on a split's tasks."""
        ...

    def settle_task(self, task: Task, accepted: bool) -> None:
        """Called once a candidate was accepted or dropped (ALFWorld moves its game from temp_train to syn_train)."""
        ...

    def close(self) -> None:
        """Release what the domain holds in this process."""
        ...


@runtime_checkable
class JudgedDomain(Domain, Protocol):
    """A domain whose steps the reward model judges one by one."""

    def judge_messages(self, task: Task, trajectory: Trajectory, i: int) -> list[Message]:
        """What the reward model reads to judge turn i; the shared history comes first."""
        ...

    def parse_score(self, text: str) -> tuple[int | None, str]:
        """(+1 or -1, "") or (None, why there is no score)."""
        ...


@runtime_checkable
class ProgramDomain(Domain, Protocol):
    """A domain whose actions are programs, for which the reward model writes unit tests."""

    def test_messages(self, task: Task) -> list[Message]:
        """What the reward model reads to write one unit test of the task."""
        ...

    def parse_test(self, text: str, task: Task) -> tuple[Any, str]:
        """(a test as `passes` takes it, "") or (None, why there is none)."""
        ...

    async def passes(self, task: Task, action: str, test: Any) -> int | None:
        """+1 where the program passes the test, -1 where not, None where the sandbox broke."""
        ...

    def reference(self, task: Task) -> str | None:
        """A program that is known to be right, where the data has one: warm starts measure tests by it."""
        ...

    def critic(self, group: Group) -> str:
        """What the tests say of the task's programs, for the rewriter."""
        ...
