"""The plain data that every part of the loop exchanges: no torch, no I/O, no behaviour beyond derived values.

A `Trajectory` is the contract between rollout, judge, feedback and learner: it keeps the very token ids that
the engine sampled, so that nothing is ever decoded and encoded again before it is trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np


class Status(StrEnum):
    """How an episode ended. Only `COMPLETED` and `TRUNCATED` carry a reward; the rest is infrastructure."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ENV_ERROR = "env_error"
    ENV_TIMEOUT = "env_timeout"
    CONTEXT_ERROR = "context_error"  # its very first prompt does not fit the engine's context
    JUDGE_ERROR = "judge_error"
    SANDBOX_ERROR = "sandbox_error"

    @property
    def is_failure(self) -> bool:
        """True where the infrastructure broke the episode: it leaves both the baseline and the loss."""
        return self not in (Status.COMPLETED, Status.TRUNCATED)


class Direction(StrEnum):
    """Where a task came from: an original of the dataset, or a rewrite that is to be harder or easier."""

    ORIGINAL = "original"
    HARDER = "harder"
    EASIER = "easier"


@dataclass(frozen=True)
class Task:
    """One task of the environment. `payload` is JSON that only the task's domain reads."""

    id: str
    payload: dict[str, Any]
    root_id: str = ""
    parent_id: str = ""
    direction: Direction = Direction.ORIGINAL
    born_step: int = 0

    def __post_init__(self) -> None:
        if not self.root_id:
            object.__setattr__(self, "root_id", self.id)


@dataclass
class Evaluation:
    """One answer of the reward model: a judgement of one turn, or a unit test for every program of a task.

    `score` is S_ij, +1 or -1, or None where the text held no score (`parse_error` says why). A unit test's is whether
    every correct program passes it (None too where there is no correct program); what it says of each program stands
    in `Turn.test_scores`. `advantage` is filled by `feedback`.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float]
    text: str
    score: int | None
    parse_error: str = ""
    reward: float = 0.0
    advantage: float = 0.0


@dataclass
class Turn:
    """One exchange: what the policy saw, what it sampled, and what the environment answered.

    `logprobs` are the engine's, of the tokens in `response_ids`, at the sampling temperature. `label` is the
    domain's own measure of the step where it has one (+1 progress, -1 none, None unknown): it is used for
    diagnostics only, never for training. `results` are the verdicts of the domain's own checks of the action, where it
    makes several. `signal` is mean_j S_ij, `reward` the integrated feedback R_i, `advantage` its standardised form;
    they are filled by `feedback` and None until then or where the turn takes no part.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float]
    text: str
    action: str | None
    observation: str
    stop_reason: str = "stop"
    parse_error: str = ""
    invalid: bool = False
    label: int | None = None
    images: tuple[str, ...] = ()
    policy_version: int = 0
    generate_s: float = 0.0
    env_s: float = 0.0
    results: tuple[str, ...] = ()
    evaluations: list[Evaluation] = field(default_factory=list)
    test_scores: list[int | None] = field(default_factory=list)  # by each of `Group.tests`, where there are some
    signal: float | None = None
    reward: float | None = None
    advantage: float | None = None

    @property
    def scores(self) -> list[int | None]:
        """S_ij by every evaluation j."""
        return self.test_scores or [e.score for e in self.evaluations]


@dataclass
class Trajectory:
    """One episode. `outcome` is O: +1 where the environment says that the task was solved, else -1."""

    task_id: str
    index: int
    first_observation: str
    turns: list[Turn] = field(default_factory=list)
    outcome: int = -1
    status: Status = Status.COMPLETED
    error: str = ""
    seconds: float = 0.0
    retries: int = 0  # earlier plays of it that the environment broke

    @property
    def success(self) -> bool:
        """True where the task was solved."""
        return self.outcome > 0


@dataclass
class Group:
    """The k episodes of one task, and the unit tests that the reward model wrote for it where it judges by these."""

    task: Task
    trajectories: list[Trajectory]
    tests: list[Evaluation] = field(default_factory=list)

    @property
    def valid(self) -> list[Trajectory]:
        """The episodes that the infrastructure did not break."""
        return [t for t in self.trajectories if not t.status.is_failure]

    @property
    def accuracy(self) -> float:
        """acc(q): share of valid episodes that solved the task (nan without any)."""
        valid = self.valid
        return sum(t.success for t in valid) / len(valid) if valid else float("nan")


@dataclass(frozen=True)
class Sample:
    """What the learner trains on, whatever the algorithm that made it.

    All arrays have shape [T]. `weights` is the loss weight of each token: 0 for prompts, 1 for a per-token mean,
    1/len(response) for a per-response mean; the loss is the weighted mean over a minibatch. `advantages`
    and `logprobs` (the engine's, at the sampling temperature) count where the weight is not 0.
    Samples with the same `key` share long prefixes and are kept together so that packing can merge these.
    """

    ids: np.ndarray
    weights: np.ndarray
    advantages: np.ndarray
    logprobs: np.ndarray
    key: str = ""

    def __post_init__(self) -> None:
        shapes = {a.shape for a in (self.ids, self.weights, self.advantages, self.logprobs)}
        if len(shapes) != 1 or self.ids.ndim != 1:
            raise ValueError(f"Sample {self.key!r}: its arrays must share one shape [T], found {sorted(shapes)}")


Message = dict[str, Any]
"""One message of a conversation, as chat templates take it.

`role` is system, user, assistant or tool. `content` is a text, or a list of parts: `{"type": "text", "text": ...}` and
`{"type": "image", "image": PATH}`. An assistant message may have `tool_calls`, a list of
`{"type": "function", "function": {"name": ..., "arguments": {...}}}`. A tool message may have the `name` of its tool
and the `tool_call_id` that it answers, which is the `id` of a call.
"""

Tool = dict[str, Any]
"""A tool that a model may call: `{"type": "function", "function": {"name", "description", "parameters"}}`, where
`parameters` is a JSON schema."""


def system(text: str) -> Message:
    """A system message."""
    return {"role": "system", "content": text}


def user(text: str, images: Sequence[str] = ()) -> Message:
    """A user message; paths of `images` come before the text."""
    parts = [{"type": "image", "image": path} for path in images]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}] if parts else text}


def assistant(text: str, tool_calls: Sequence[dict[str, Any]] = ()) -> Message:
    """An assistant message; without calls it has no key for them, since templates ask whether the key is there."""
    message: Message = {"role": "assistant", "content": text}
    return {**message, "tool_calls": list(tool_calls)} if tool_calls else message


def tool(text: str, name: str = "", tool_call_id: str = "") -> Message:
    """What a tool answered; `name` and `tool_call_id` are left out if empty."""
    more = {"name": name, "tool_call_id": tool_call_id}
    return {"role": "tool", "content": text, **{key: value for key, value in more.items() if value}}


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image of a prompt."""

    path: str
    """The file."""
    digest: str
    """Hash of the file's content, hexadecimal."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What a model reads before it writes."""

    ids: list[int]
    """Token ids, shape [T]."""
    images: tuple[Image, ...] = ()
    """The images that `ids` stand for, in their order."""
