"""The parts of a domain: judging, rewriting and demonstrating. The first two have defaults for any text domain."""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from rlanything.domains.answers import last_object, parse_score, whole
from rlanything.types import (
    Direction,
    Group,
    Judgement,
    Message,
    Place,
    Prompt,
    Task,
    Tool,
    Trajectory,
    Turn,
    system,
    user,
    user_parts,
)

Written = Callable[..., list[Message]]
"""A user's prompt: it takes the task, and the variables of its template by their names."""
MAX_REMARKS = 3  # commonest remarks of each kind that a critic repeats
JUDGE_SYSTEM = (
    "You judge single steps of an agent that works on a task. A step is good if it brings the task nearer to its end "
    "or finds out what the agent needs to know; it is bad if it is wrong, does nothing, repeats what is known, or "
    "undoes progress. Reason briefly about the last step only, then give \\boxed{1} for good or \\boxed{-1} for bad."
)
REWRITE_SYSTEM = (
    "You change tasks of an agent so that they become easier or harder for it. You read one task as a JSON object, and "
    "how the agent does on it. Think first, then answer with one JSON object that has the same keys: a new task of the "
    "same kind, complete by itself, whose values fit together."
)


class RejectedTask(ValueError):
    """A proposed task is not valid. Metrics count each `reason`, a short word."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(kw_only=True)
class Conversation:
    """A demonstration."""

    messages: list[Message]
    trained: list[bool]
    """True for each message, an assistant's, that the model learns to write."""
    key: str = ""
    """Conversations with the same key share their beginning, which packing merges."""
    tools: list[Tool] = field(default_factory=list)
    """Tools that the chat template shows."""
    source: str = ""
    """File and line that it was read from; empty if a domain made it."""
    judged: Turn | None = None
    """The turn that is judged, for a `StepJudging.parse` that needs it."""


class StepJudging:
    """The reward model judges every turn. By default it reads the transcript and answers \\boxed{1} or \\boxed{-1}."""

    covers: ClassVar[Literal["turn"]] = "turn"
    written: Written | None = None
    """The user's own prompt, which comes before `messages`."""

    def __init__(self, style: str) -> None:
        """`style` is `dataset.prompt`."""
        self.style = style

    def asked(self, task: Task, trajectory: Trajectory, i: int) -> list[Message]:
        """The prompt for turn i, the user's or the domain's."""
        if self.written is None:
            return self.messages(task, trajectory, i)
        told = [told_step(t.text, t.action, t.observation, t.actions) for t in trajectory.turns[: i + 1]]
        return self.written(task, first=trajectory.first_observation, steps=told, number=i + 1)

    def messages(self, task: Task, trajectory: Trajectory, i: int) -> list[Message]:
        """The prompt for turn i. The shared history comes first, so that consecutive turns share a cached prefix.

        Images come last: those that the environment showed before the turn, then those after it.
        """
        past = "".join(f"\n> {' '.join(t.text.split())}\n{t.observation}" for t in trajectory.turns[: i + 1])
        asked = f"{trajectory.first_observation}{past}\nIs step {i + 1}, the last one, good or bad?"
        messages = conversation(JUDGE_SYSTEM, asked, self.style)
        before, after = trajectory.images_before(i), trajectory.turns[i].images
        if before or after:
            messages[-1] = user_parts(f"{asked}\nBefore the step: ", before, "\nAfter the step: ", after)
        return messages

    def parse(self, text: str, turn: Turn | None = None) -> tuple[int | None, str]:
        """(+1 or -1, "") or (None, why there is no score). `turn` is the judged one."""
        return parse_score(text)

    def answer(self, task: Task, turn: Turn) -> str:
        """The judgement that a turn with a label deserves, in the form that `parse` reads: a warm start teaches it."""
        assert turn.label is not None
        return vote(turn.label, turn.reason)


def vote(score: float, reason: str = "") -> str:
    """A step's score, in the form that `StepJudging.parse` reads."""
    return f"{reason} \\boxed{{{score}}}".strip()


def unwritten(place: Place, score: float) -> Judgement:
    """A judgement that no model wrote: its score alone, without remarks, which the rewriter would read."""
    nothing = Prompt(ids=[])
    return Judgement(prompt=nothing, response_ids=[], logprobs=[], text=vote(round(score, 2)), scores={place: score})


class TestJudging(ABC):
    """The reward model writes unit tests for a task, and each is tried on the actions of every episode."""

    __test__ = False  # for pytest
    covers: ClassVar[Literal["task"]] = "task"
    written: Written | None = None
    """The user's own prompt, which comes before `messages`."""

    def asked(self, task: Task) -> list[Message]:
        """The prompt for one unit test, the user's or the domain's."""
        return self.written(task) if self.written else self.messages(task)

    @abstractmethod
    def messages(self, task: Task) -> list[Message]:
        """The prompt for one unit test of the task."""

    @abstractmethod
    def parse(self, text: str, task: Task) -> tuple[Any, str]:
        """(a test as `passes` takes it, "") or (None, why there is none)."""

    @abstractmethod
    async def passes(self, task: Task, action: str, test: Any) -> int | None:
        """+1 if the action passes the test, -1 if not, None if the infrastructure broke."""

    @abstractmethod
    def reference(self, task: Task) -> str | None:
        """An action that is known to be right, if the data has one: warm starts measure tests by it."""


class Rewriting:
    """The rewriter makes harder and easier variants of tasks.

    By default it rewrites the texts and numbers of a task's payload. The acceptance gate then decides: acc(q') > 0
    proves a variant solvable.
    """

    written: Written | None = None
    """The user's own prompt, which comes before `messages`."""

    def __init__(self, style: str, check: Callable[[Task], None]) -> None:
        """`style` is `dataset.prompt`; `check` raises RejectedTask for a variant that the domain cannot use."""
        self.style, self.check = style, check

    def asked(self, task: Task, direction: Direction, accuracy: float, critic: str) -> list[Message]:
        """The prompt for one variant, the user's or the domain's."""
        if self.written is None:
            return self.messages(task, direction, accuracy, critic)
        return self.written(task, direction=str(direction), accuracy=accuracy, critic=critic)

    def messages(self, task: Task, direction: Direction, accuracy: float, critic: str) -> list[Message]:
        """The prompt for one variant; `critic` is what `critic()` returns for the task's episodes."""
        asked = (
            f"Task: {json.dumps(_rewritable(task), ensure_ascii=False)}\nSolved: {accuracy:.0%}\n"
            f"Critic: {critic or 'none'}\nMake it {direction}."
        )
        return conversation(REWRITE_SYSTEM, asked, self.style)

    def parse(self, text: str, task: Task, direction: Direction, task_id: str) -> Task:
        """The proposed variant, validated. It writes no file. Raises RejectedTask."""
        old = _rewritable(task)
        found = last_object(text, list(old))
        if found is None:
            raise RejectedTask("no_proposal", f"no JSON object with the keys {', '.join(old)}")
        for key, value in old.items():
            kinds = str if isinstance(value, str) else (int, float)
            if isinstance(found[key], bool) or not isinstance(found[key], kinds):
                raise RejectedTask("schema", f"{key}: found {found[key]!r}, expected a value like {value!r}")
            if isinstance(found[key], str) and whole(found[key]) != found[key]:
                raise RejectedTask("schema", f"{key}: half a character (a lone surrogate) in the text")
        new = {key: found[key] for key in old}
        if new == old:
            raise RejectedTask("unchanged", "the same task again")
        variant = variant_of(task, {**task.payload, **new}, direction, task_id)
        self.check(variant)
        return variant

    async def prove(self, task: Task) -> Task:
        """Complete a parsed variant by what has to be executed. Raises RejectedTask. By default nothing has to be."""
        return task

    def critic(self, group: Group) -> str:
        """A summary for the rewriter of how the task's episodes went.

        By default it holds the reward model's `remarks`.
        """
        return remarks(group, self.told)

    def told(self, turn: Turn) -> str:
        """A turn in a few words, for the summary: its action."""
        return turn.action or "no action"

    def open(self, task: Task) -> None:
        """Write the files of a proposed task, if the domain keeps any."""

    def settle(self, task: Task, accepted: bool) -> None:
        """Keep or remove the files of a candidate that was accepted or dropped."""


def remarks(group: Group, told: Callable[[Turn], str]) -> str:
    """The reward model's commonest remarks on good and on bad steps, in solved and in failed episodes.

    Each stands with the step, as `told` says it.
    """
    lines = []
    for solved in (True, False):
        trajectories = {t.index: t for t in group.valid if t.success is solved}
        if not trajectories:
            continue
        lines.append(f"{len(trajectories)} {'solved' if solved else 'failed'} episodes:")
        for wanted, word in ((1, "good"), (-1, "bad")):
            said = Counter(
                f"{told(trajectories[episode].turns[i])}: {' '.join(judgement.text.split())}"
                for judgement in group.judgements
                for (episode, i), score in judgement.scores.items()
                if score is not None and score * wanted > 0
                if episode in trajectories and i >= trajectories[episode].begun
            )
            commonest = sorted(said, key=lambda remark: (-said[remark], remark))[:MAX_REMARKS]
            lines += [f"- {word} x{said[remark]}: {remark}" for remark in commonest]
    return "\n".join(lines)


class Demonstrating(ABC):
    """Demonstrations for supervised warm starts."""

    @abstractmethod
    def conversations(self, role: str, split: str, seed: int) -> Iterator[Conversation]:
        """An endless stream for a role (policy, reward, rewriter) on a split's tasks.

        Raises TaskError if there are none.
        """


def told_step(response: str, action: str | None, observation: str, actions: Sequence[str]) -> dict[str, Any]:
    """A past turn as templates see it; `actions` were admissible before it."""
    return {"response": response, "action": action, "observation": observation, "actions": list(actions)}


def conversation(instructions: str, asked: str, style: str) -> list[Message]:
    """The question after its instructions; if `style` (`dataset.prompt`) is compact, the question alone."""
    return [user(asked)] if style == "compact" else [system(instructions), user(asked)]


def variant_of(task: Task, payload: dict[str, Any], direction: Direction, task_id: str) -> Task:
    """A task with this payload that descends from `task`."""
    return Task(id=task_id, payload=payload, root_id=task.root_id, parent_id=task.id, direction=direction)


def _rewritable(task: Task) -> dict[str, str | int | float]:
    """The texts and numbers of a payload."""
    return {k: v for k, v in task.payload.items() if isinstance(v, (str, int, float)) and not isinstance(v, bool)}
