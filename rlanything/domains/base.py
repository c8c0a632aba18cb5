"""The interface of a domain, which knows nothing of the loop.

A whole domain, in any importable module (`dataset.domain=sums:Sums dataset.options.top=20`):

    class SumEnv(Env):
        def __init__(self, task):
            self.answer, self.question = task.payload["answer"], task.payload["question"]

        async def reset(self):
            return Observation(self.question)

        async def step(self, action):
            right = action.strip() == self.answer
            return Observation("right" if right else "wrong", done=True, success=right)

    class Sums(Domain):
        @dataclass
        class Options:
            top: int = 9

        def tasks(self, split):
            draw = random.Random(split).randint
            pairs = [(draw(0, self.options.top), draw(0, self.options.top)) for _ in range(32)]
            return [Task(id=f"{split}/{i}", payload={"question": f"{a} + {b} = ?", "answer": str(a + b)})
                    for i, (a, b) in enumerate(pairs)]

        def make_env(self, task):
            return SumEnv(task)

The default judge and the default rewriter serve it, as any domain of texts.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from rlanything.config.plugins import make_options
from rlanything.config.schema import Config
from rlanything.domains.answers import whole
from rlanything.domains.images import ImageStore
from rlanything.domains.parts import (
    Conversation,
    Demonstrating,
    Rewriting,
    StepJudging,
    TestJudging,
    Written,
    told_step,
)
from rlanything.errors import TaskError
from rlanything.types import Message, Score, Task, Tool, system, user


class SandboxFailure(RuntimeError):
    """The sandbox broke while it executed a program. A retry may mend this fault of the infrastructure."""


@dataclass(frozen=True)
class Observation:
    """What the environment answers."""

    text: str
    _: KW_ONLY
    images: tuple[str, ...] = ()
    """Files of images, such as a screenshot; `Domain.images` keeps them."""
    actions: tuple[str, ...] = ()
    """Admissible actions, if the domain can list them."""
    done: bool = False
    """The episode is over."""
    success: bool = False
    """The task is solved now."""
    reward: float | None = None
    """A shaped or partial reward of the episode so far; None if there is none."""
    invalid: bool = False
    """The last action did nothing, because it was malformed or not admissible."""
    label: int | None = None
    """+1 if the last action was progress by the domain's own measure, -1 if not, None if the domain cannot tell."""
    reason: str = ""
    """Why the label is so: what a judge should think of. Warm starts of the reward model teach it."""
    results: tuple[str, ...] = ()
    """Verdicts of checks of the last action; "ok" if it passed, perhaps with a remark: "ok (text)"."""
    state: str = ""
    """Name of the environment's state, for rules that compare turns of the same state; empty takes the text."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds that this answer took, by phases of the environment's own."""

    def __post_init__(self) -> None:
        _mend_texts(self, "text", "actions", "reason", "results", "state")


@dataclass(frozen=True)
class ParsedAction:
    """The action in a response, or None and the reason."""

    action: str | None
    error: str = ""
    point: tuple[float, float] | None = None
    """The point of the image before the turn that it acts on, as shares of width and height; a report draws it."""
    kind: str = ""
    """Its kind, such as left_click; figures count them."""

    def __post_init__(self) -> None:
        _mend_texts(self, "action", "error")


def _mend_texts(holder: Any, *names: str) -> None:
    """Put U+FFFD in place of each half of a character (a lone surrogate, as JSON's escapes can make) in these texts: no
    tokenizer and no file takes one."""
    for name in names:
        value = getattr(holder, name)
        mended = whole(value) if isinstance(value, str) else value and tuple(map(whole, value))
        if mended != value:
            object.__setattr__(holder, name, mended)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One past turn, as `Domain.retold` renders it."""

    response: str
    """The policy's text."""
    action: str | None
    observation: Observation


class Env(ABC):
    """One episode's environment."""

    @abstractmethod
    async def reset(self) -> Observation:
        """Start the episode."""

    @abstractmethod
    async def step(self, action: str | None) -> Observation:
        """Take one action. None (the response holds no action) is answered like any inadmissible action."""

    async def score(self, last: Observation) -> Score:
        """Score the episode, however it ended, by default from the last observation.

        It is called once, but not if the infrastructure broke the episode.
        """
        return Score(success=last.success, reward=last.reward)

    async def close(self) -> None:  # noqa: B027 (most environments hold nothing)
        """Release what the environment holds."""


@dataclass(frozen=True)
class NoOptions:
    """Options of a domain that takes none."""


class Domain(ABC):
    """Everything that is specific to one kind of task. It holds no state of an episode.

    Only `tasks` and `make_env` are abstract. `judging`, `rewriting` and `demonstrating` are parts: replace them in
    `__init__`, after `super().__init__(config)`.
    """

    Options: ClassVar[type] = NoOptions
    """A dataclass or pydantic model that `dataset.options` is checked against."""
    system: str = ""
    """The text that opens every conversation with the policy."""

    judging: StepJudging | TestJudging | None
    """How the reward model judges. None: it does not."""
    rewriting: Rewriting | None
    """How the rewriter makes harder and easier tasks. None: it does not."""
    demonstrating: Demonstrating | None
    """Demonstrations for supervised warm starts. None: there are none."""
    images: ImageStore
    """Keeps the images that environments show: `Observation("", images=(domain.images.put(png),))`."""

    def __init__(self, config: Config) -> None:
        """Raises ConfigError if `dataset.options` does not fit, TaskError if the data is missing."""
        self.config = config
        self.options: Any = make_options("dataset.options", self.Options, config.dataset.options)
        style = config.dataset.prompt
        self.written: Written | None = None
        self._limit: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self.images = ImageStore(Path(config.experiment.output_dir) / config.experiment.name / "images")
        self.judging, self.rewriting, self.demonstrating = StepJudging(style), Rewriting(style, self.check), None

    @abstractmethod
    def tasks(self, split: str) -> list[Task]:
        """All tasks of a split, the same at every call. Raises TaskError if there is no such split."""

    @abstractmethod
    def make_env(self, task: Task) -> Env:
        """A fresh environment for one episode of the task."""

    def prepare(self, splits: Sequence[str]) -> None:
        """Read the splits and start what episodes need, before models are loaded. Raises TaskError."""
        for split in splits:
            split_tasks(self, split)

    def admit(self, tasks: Sequence[Task], variants: bool, say: Callable[[str], None]) -> bool:
        """Try tasks that nobody tried on this machine, so that `refusal` knows of them. `say` gets lines about it.

        `variants` says that a rewriter will make variants of them. It is called before models are loaded. Returns True
        if it tried any; which tasks a run draws is then asked anew.
        """
        return False

    def refusal(self, task: Task) -> str:
        """Why this machine cannot play a task; "" if it can, or if nobody tried. Runs leave such tasks out."""
        return ""

    def close(self) -> None:  # noqa: B027 (most domains hold nothing)
        """Release what the domain holds in this process."""

    @property
    def root(self) -> Path | None:
        """The folder of its data, which every node of a cluster must see; None if it has none."""
        return Path(self.config.dataset.path) if self.config.dataset.path else None

    @property
    def capacity(self) -> int | None:
        """Episodes that this process can play at once; None if the domain sets no limit."""
        return None

    def at_once(self, most: int) -> int:
        """Episodes that this process plays at once, if a run wants at most `most`."""
        return min(most, self.capacity or most)

    def limit(self, most: int) -> asyncio.Semaphore:
        """Lets `at_once` episodes pass. Batches that are played beside one another share it, in one event loop."""
        loop = asyncio.get_running_loop()
        if self._limit is None or self._limit[0] is not loop:
            self._limit = loop, asyncio.Semaphore(self.at_once(most))
        return self._limit[1]

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Width and height [pixels] of the images of observations, by which a plan counts tokens; None without any."""
        return None

    def figures(self) -> dict[str, float]:
        """Return figures of this process's environments that people may watch, such as how many desktops are alive."""
        return {}

    def data_files(self, split: str) -> list[Path]:
        """The files that a split's tasks are read from."""
        return []

    def executions(self, tasks: Sequence[Task]) -> int:
        """The programs that a step executes in the sandbox at most, by a split's tasks; 0 if it executes none."""
        return 0

    def describe(self, task: Task) -> str:
        """The task in one line, for people."""
        return next((str(v) for v in task.payload.values() if isinstance(v, str) and v), task.id)

    def kind(self, task: Task) -> str:
        """The task's type; evaluations are broken down by it."""
        return "task"

    def same_answer(self, task: Task, answer: str) -> str:
        """A name that two wrong answers to a task share if they are the same, for majority votes over episodes."""
        return " ".join(answer.split())

    def identity(self, task: Task) -> str:
        """A text by which two tasks of a pool must differ."""
        return json.dumps(task.payload, sort_keys=True)

    def check(self, task: Task) -> None:  # noqa: B027 (most domains have no check)
        """Check a rewritten task before it is tried. Raises RejectedTask."""

    def tools(self) -> list[Tool]:
        """Schemas of tools for the chat template."""
        return []

    def check_calls(self, written: Callable[[Message], str]) -> None:  # noqa: B027 (most domains have no tools)
        """Check that calls of `tools` are read as the policy writes them. `written` gives the text of an assistant
        message with `tool_calls`, as the chat template renders it. Raises TaskError."""

    def asked(self, task: Task, first: Observation, steps: Sequence[Step]) -> list[Message]:
        """The messages before a turn with all steps in one rendering: by the user's template, else `opening` if there
        are no steps, else `retold`."""
        if self.written is None:
            return self.retold(task, first, steps) if steps else self.opening(task, first)
        before = [first, *(step.observation for step in steps)]
        told = [
            told_step(s.response, s.action, s.observation.text, seen.actions)
            for s, seen in zip(steps, before, strict=False)
        ]
        now = before[-1]
        return self.written(task, first=first.text, steps=told, observation=now.text, actions=list(now.actions))

    def opening(self, task: Task, first: Observation) -> list[Message]:
        """The messages before the first turn: `system`, and the first observation."""
        return [*([system(self.system)] if self.system else []), user(first.text, first.images)]

    def answer(self, observation: Observation) -> list[Message]:
        """The messages after a turn: the observation."""
        return [user(observation.text, observation.images)]

    def retold(self, task: Task, first: Observation, steps: Sequence[Step]) -> list[Message]:
        """The messages before a turn with `rollout.history: paper`, which renders all past steps anew."""
        *head, opened = self.opening(task, first)
        past = "".join(f"\n> {s.action or '(no action)'}\n{s.observation.text}" for s in steps)
        return [*head, user(f"{text_of(opened)}{past}", steps[-1].observation.images if steps else first.images)]

    def parse_action(self, text: str, observation: Observation) -> ParsedAction:
        """The action in a response; by default the whole response."""
        action = text.strip()
        return ParsedAction(action) if action else ParsedAction(None, "an empty response")

    def demonstrations(self, role: str, split: str, seed: int) -> Iterator[Conversation]:
        """An endless stream of demonstrations for a role on a split's tasks. Raises TaskError if there are none."""
        if self.demonstrating is None:
            raise TaskError(
                f"{type(self).__name__} has no demonstrations; give conversations of your own (data=FILE.jsonl)"
            )
        return self.demonstrating.conversations(role, split, seed)

    def script(self, task: Task) -> Iterator[str] | None:
        """The actions of a scripted solution, as `Env.step` takes them; None if the domain knows none for the task."""
        return None

    def typed_action(self, text: str, observation: Observation) -> str:
        """The action that a person means who types `text` in `rlanything play`. Raises ValueError, which says why the
        text means none."""
        return text


def text_of(message: Message) -> str:
    """The text of a message, its parts joined."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def admitted(
    domain: Domain, draw: Callable[[], list[Task]], say: Callable[[str], None], variants: bool = False
) -> list[Task]:
    """The tasks that `draw` returns, once this machine has tried all of them. A draw may depend on what is refused."""
    while domain.admit(draw(), variants, say):
        pass
    return draw()


def playable(domain: Domain, split: str, tasks: Sequence[Task]) -> list[Task]:
    """Leave out the tasks of a split that this machine refuses. Raises TaskError if none is left."""
    found = [task for task in tasks if not domain.refusal(task)]
    if tasks and not found:
        raise TaskError(
            f"split {split}: this machine can play none of the {len(tasks)} tasks drawn; the first is {tasks[0].id}: "
            f"{domain.refusal(tasks[0])}"
        )
    return found


def split_tasks(domain: Domain, split: str) -> list[Task]:
    """A split's tasks by their ids. Raises TaskError if there is none, or if an id occurs twice."""
    tasks = sorted(domain.tasks(split), key=lambda task: task.id)
    if not tasks:
        raise TaskError(f"dataset.domain={domain.config.dataset.domain}: its split {split!r} holds no task")
    twice = next((a.id for a, b in pairwise(tasks) if a.id == b.id), None)
    if twice is not None:
        raise TaskError(
            f"dataset.domain={domain.config.dataset.domain}: two tasks of its split {split!r} have the id {twice!r}; "
            "expected one of its own for each"
        )
    return tasks
