"""The plain data that every part of the loop exchanges: no torch, no I/O, no behaviour beyond derived values.

A `Trajectory` is the contract between rollout, judging, algorithm and learner. It keeps the very token ids that the
engine sampled, so nothing is ever decoded and encoded again before it is trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

Message = dict[str, Any]
"""One message of a conversation, as chat templates take it.

`role` is system, user, assistant or tool. `content` is a text, or a list of parts: `{"type": "text", "text": ...}` and
`{"type": "image", "image": PATH}`. An assistant message may have `tool_calls`, a list of
`{"type": "function", "function": {"name": ..., "arguments": {...}}}`. A tool message may have the `name` of its tool
and the `tool_call_id` that it answers, which is the `id` of a call. A message of the role `RAW` is a conversation by
itself: the whole prompt as text, special tokens included, which no chat template touches.
"""
RAW = "raw"

Tool = dict[str, Any]
"""A tool that a model may call: `{"type": "function", "function": {"name", "description", "parameters"}}`, where
`parameters` is a JSON schema."""


def system(text: str) -> Message:
    """A system message."""
    return {"role": "system", "content": text}


def user(text: str, images: Sequence[str] = ()) -> Message:
    """A user message; paths of `images` come before the text."""
    return user_parts(images, text) if images else {"role": "user", "content": text}


def user_parts(*parts: str | Sequence[str]) -> Message:
    """A user message of several parts, in order: a text, or a sequence of paths of images."""
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
        else:
            content += [{"type": "image", "image": path} for path in part]
    return {"role": "user", "content": content}


def assistant(text: str, tool_calls: Sequence[dict[str, Any]] = ()) -> Message:
    """An assistant message. Without calls it has no key for them, because templates test for the key."""
    message: Message = {"role": "assistant", "content": text}
    return {**message, "tool_calls": list(tool_calls)} if tool_calls else message


def tool(text: str, name: str = "", tool_call_id: str = "") -> Message:
    """A tool's answer; `name` and `tool_call_id` are left out if empty."""
    more = {"name": name, "tool_call_id": tool_call_id}
    return {"role": "tool", "content": text, **{key: value for key, value in more.items() if value}}


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image of a prompt."""

    path: str
    digest: str
    """Hash of the file's content, hexadecimal."""
    start: int
    """Index of its first token in the prompt's ids."""
    rows: int
    """Rows of its grid of tokens."""
    columns: int
    """Columns of the grid."""

    @property
    def num_token(self) -> int:
        """Tokens that stand for it."""
        return self.rows * self.columns


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What a model reads before it writes."""

    ids: list[int]
    """Token ids, shape [T]."""
    images: tuple[Image, ...] = ()
    """The images that `ids` refer to, in their order."""

    def extended(self, response_ids: Sequence[int], more: Prompt) -> Prompt:
        """This prompt, a response and what follows it, as one prompt."""
        start = len(self.ids) + len(response_ids)
        moved = (replace(image, start=image.start + start) for image in more.images)
        return Prompt(ids=[*self.ids, *response_ids, *more.ids], images=(*self.images, *moved))


class Status(StrEnum):
    """How an episode ended. Only `COMPLETED` and `TRUNCATED` carry a reward; the others are infrastructure faults."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ENV_ERROR = "env_error"
    ENV_TIMEOUT = "env_timeout"
    CONTEXT_ERROR = "context_error"  # the very first prompt does not fit the engine's context
    JUDGE_ERROR = "judge_error"
    SANDBOX_ERROR = "sandbox_error"

    @property
    def is_failure(self) -> bool:
        """True if the infrastructure broke the episode: it leaves both the baseline and the loss."""
        return self not in (Status.COMPLETED, Status.TRUNCATED)


class Ending(StrEnum):
    """Why an episode ended."""

    DONE = "done"  # the environment said so
    TURNS = "turns"  # rollout.max_interaction_step
    LENGTH = "length"  # a response was cut at rollout.max_response_tokens, or the episode at max_episode_tokens
    CONTEXT = "context"  # the next prompt does not fit the engine's context
    BROKEN = "broken"  # `Trajectory.status` says what broke


class Direction(StrEnum):
    """Origin of a task: the dataset, or a rewrite that should be harder or easier."""

    ORIGINAL = "original"
    HARDER = "harder"
    EASIER = "easier"


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task of the environment."""

    id: str
    """Unique within a task pool."""
    payload: dict[str, Any]
    """JSON that only the task's domain reads."""
    root_id: str = ""
    """The original that this task descends from; its own id if it is an original."""
    parent_id: str = ""
    """The task that it was rewritten from; empty for an original."""
    direction: Direction = Direction.ORIGINAL
    """What the rewriter was asked for."""
    born_step: int = 0
    """Step in which it was proposed."""

    def __post_init__(self) -> None:
        if not self.root_id:
            object.__setattr__(self, "root_id", self.id)


@dataclass(frozen=True, kw_only=True)
class Score:
    """The environment's score of an episode that has ended."""

    success: bool
    """True if the task was solved."""
    reward: float | None = None
    """A shaped or partial reward; None if the environment has none. Used with `algorithm.reward: score`."""
    answer: str | None = None
    """The final answer, for majority votes over episodes; None if there is none."""


Place = tuple[int, int]
"""(index of the episode in its group, index of the turn in the episode)."""


@dataclass(kw_only=True)
class Exchange:
    """What a model read and what it sampled."""

    prompt: Prompt
    response_ids: list[int]
    """Token ids, the end-of-turn token included."""
    logprobs: list[float]
    """The engine's, of `response_ids`, at the sampling temperature."""
    text: str
    """The decoded response."""
    parse_error: str = ""
    """Why the text holds no action or no score; empty if it does."""


@dataclass(kw_only=True)
class Judgement(Exchange):
    """One answer of the reward model, and its scores of turns.

    A step judge's answer covers one turn, a unit test's covers the programs of all episodes of the task, a trajectory
    judge's covers one episode. `reward` and `advantage` are filled by `algorithm.consistency`.
    """

    scores: dict[Place, float | None] = field(default_factory=dict)
    """S for every turn that it covers: +1 or -1 (measured advantages lie between), or None if it holds no score."""
    shared: bool = False
    """True if it covers all episodes of the task (a unit test), False if it covers one."""
    counts: bool = True
    """False if it must not enter the step signal, though it may train: a unit test that a correct program fails."""
    reward: float = 0.0
    """Consistency feedback."""
    advantage: float = 0.0
    """Its standardised form."""


def is_passed(result: str) -> bool:
    """True of a verdict "ok", perhaps with a remark in brackets behind it."""
    return result.partition(" ")[0] == "ok"


@dataclass(kw_only=True)
class Turn(Exchange):
    """One exchange of the policy, and the environment's answer.

    `signal`, `reward` and `advantage` are filled by `algorithm.advantages`. They are None until then, and stay None if
    the turn takes no part.
    """

    action: str | None
    """The parsed action; None if the text holds none."""
    actions: tuple[str, ...] = ()
    """These were admissible before it. They are noted only if a judge's template may ask, and no file keeps them."""
    observation: str
    """The environment's answer."""
    stop_reason: str = "stop"
    """"stop" or "length"."""
    invalid: bool = False
    """True if the action did nothing because it was malformed or not admissible."""
    label: int | None = None
    """The domain's own measure of the step: +1 progress, -1 none, None unknown. Diagnostics and warm starts alone read
    it, the loop's updates never."""
    reason: str = ""
    """The domain's reason for the label. It is not kept in a run's files."""
    kind: str = ""
    """The action's kind, such as left_click, if the domain tells kinds apart."""
    results: tuple[str, ...] = ()
    """Verdicts of the domain's own checks of the action, if it makes any."""
    images: tuple[str, ...] = ()
    """Files of images in the observation."""
    point: tuple[float, float] | None = None
    """The point of the last image before the turn that the action acts on, as shares of width and height."""
    state: str = ""
    """Digest of the state in which the turn began; turns of a group with equal states can be compared."""
    policy_version: int = 0
    """Version of the weights that sampled the response."""
    generate_s: float = 0.0
    """Time until the response was there [s]."""
    env_s: float = 0.0
    """Time until the environment had answered [s]."""
    signal: float | None = None
    """mean_j S_ij over the judgements that cover the turn."""
    reward: float | None = None
    """Integrated feedback R_i."""
    advantage: float | None = None
    """What the policy's update uses."""


@dataclass(kw_only=True)
class Trajectory:
    """One episode."""

    task_id: str
    index: int
    """Its number in the group."""
    first_observation: str = ""
    """What the environment said at the start."""
    first_images: tuple[str, ...] = ()
    """Files of images that it showed at the start."""
    turns: list[Turn] = field(default_factory=list)
    origin: int | None = None
    """Number of the episode from whose state it went on; None if it began at the beginning."""
    begun: int = 0
    """Turns that led to that state. They are its first turns, too, repeated from that episode."""
    score: Score | None = None
    """The environment's score; None if the infrastructure broke the episode."""
    status: Status = Status.COMPLETED
    ending: Ending = Ending.DONE
    """Why it ended."""
    error: str = ""
    """What broke it."""
    seconds: float = 0.0
    """Duration [s]."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds of it that went to `reset`, `model` and `evaluate`, and to phases that the environment names."""
    retries: int = 0
    """Times that it was played anew because the environment had broken it."""
    reward: float | None = None
    """The episode's reward as `algorithm.reward` names it; filled by `algorithm.advantages`."""
    shaping: dict[str, float] = field(default_factory=dict)
    """The terms of this reward besides the outcome, by name; filled with it."""

    @property
    def own(self) -> list[Turn]:
        """The turns that were sampled for it."""
        return self.turns[self.begun :]

    def images_before(self, i: int) -> tuple[str, ...]:
        """Files of the images that the policy saw when turn i began."""
        return self.turns[i - 1].images if i else self.first_images

    @property
    def success(self) -> bool:
        """True if the task was solved."""
        return self.score is not None and self.score.success

    @property
    def outcome(self) -> int:
        """O: +1 if the task was solved, else -1."""
        return 1 if self.success else -1


def _solved_share(episodes: Sequence[Trajectory]) -> float:
    return sum(t.success for t in episodes) / len(episodes) if episodes else float("nan")


@dataclass(kw_only=True)
class Group:
    """The k episodes of one task, and the reward model's judgements of them."""

    task: Task
    trajectories: list[Trajectory]
    judgements: list[Judgement] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    """What `Domain.figures` said when the last episode had ended; not kept in files."""

    @property
    def valid(self) -> list[Trajectory]:
        """The episodes that the infrastructure did not break."""
        return [t for t in self.trajectories if not t.status.is_failure]

    @property
    def whole(self) -> list[Trajectory]:
        """The valid episodes that began at the beginning of the task."""
        return [t for t in self.valid if t.origin is None]

    @property
    def accuracy(self) -> float:
        """acc(q): share of whole episodes that solved the task (nan without any)."""
        return _solved_share(self.whole)

    @property
    def solved_share(self) -> float:
        """Share of all valid episodes that solved the task. It tells if there is a difference to learn from."""
        return _solved_share(self.valid)

    @property
    def shared(self) -> list[Judgement]:
        """The judgements of all episodes at once: unit tests."""
        return [j for j in self.judgements if j.shared]


@dataclass(frozen=True)
class Sample:
    """One sequence for the learner. All arrays have shape [T].

    Samples with the same `key` share long prefixes; they are kept together so that packing can merge these.
    """

    ids: np.ndarray
    """Token ids of prompt and response."""
    weights: np.ndarray
    """Loss weight of each token: 0 for prompts, 1 for a per-token mean, 1/len(response) for a per-response mean. The
    loss is the weighted mean over a minibatch."""
    advantages: np.ndarray
    """Advantage of each token whose weight is not 0."""
    logprobs: np.ndarray
    """The engine's logprob of each token whose weight is not 0, at the sampling temperature."""
    key: str = ""
    images: tuple[Image, ...] = ()
    """The images of the prompt. Each image's token has the same id; the image tells them apart."""

    def __post_init__(self) -> None:
        shapes = {a.shape for a in (self.ids, self.weights, self.advantages, self.logprobs)}
        if len(shapes) != 1 or self.ids.ndim != 1:
            raise ValueError(f"Sample {self.key!r}: its arrays must share one shape [T], found {sorted(shapes)}")


def shared_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """How many tokens two sequences [T] share from their beginning on."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n


@dataclass(frozen=True, kw_only=True)
class SampleSet:
    """The samples of one key: an episode's turns, or the judgements of one episode. A learner rank takes whole sets."""

    key: str
    num: int
    """Number of samples."""
    tokens: int
    """Tokens of all samples."""
    tree_tokens: int
    """About as many tokens are left when shared prefixes are merged."""
    samples: Any
    """A list of `Sample`; on Ray a reference to one, which only the learner ranks that train on it resolve."""
