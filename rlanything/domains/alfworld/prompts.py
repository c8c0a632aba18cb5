"""Every prompt of the ALFWorld domain, and what is read out of the answers.

Two styles: `full` explains the rules and suits instruct models; `compact` holds the observations alone and suits
tiny models that learned the rules from demonstrations. Both answer in \\boxed{...}.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlanything.domains.base import Observation, ParsedAction, Step
from rlanything.types import Direction, Message, Trajectory

_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_WELCOME = "-= Welcome to TextWorld, ALFRED! =-\n\n"
# Commands that change something where one stands; going and looking are always known.
ACTING = ("take ", "move ", "open ", "close ", "use ", "heat ", "cool ", "clean ", "slice ")
_SCORES = {"1": 1, "+1": 1, "-1": -1}

POLICY_SYSTEM = (
    "You are an agent in a household. You see one room as text and act by commands such as: go to shelf 1, "
    "open drawer 2, take mug 1 from desk 1, move mug 1 to shelf 1, heat egg 1 with microwave 1, "
    "cool egg 1 with fridge 1, clean egg 1 with sinkbasin 1, use desklamp 1, examine shelf 1, look, inventory. "
    "You carry at most one thing, and find out what is where only by going there. In each turn think briefly, then "
    "give exactly one command, word for word as the room names things, in \\boxed{}."
)
JUDGE_SYSTEM = (
    "You judge single steps of an agent that works on a household task. A step is good if it brings the task nearer "
    "to its end or looks for what is needed where nobody looked yet; it is bad if it does nothing, repeats what is "
    "known, or undoes progress. Reason briefly about the last step only, then give \\boxed{1} for good or "
    "\\boxed{-1} for bad."
)
REWRITE_SYSTEM = (
    "You change tasks of a household agent so that they become easier or harder in the same room. Write one task in "
    "exactly one of these forms, with kinds of things and places that the room has:\n"
    "put a X in Y. / put a clean X in Y. / put a hot X in Y. / put a cool X in Y. / put two X in Y. / "
    "look at X under the Y.\n"
    "What is in plain sight and needs no preparation is easier. Reason briefly, then give the task in \\boxed{}."
)


def opening(first: Observation) -> str:
    """The first observation as the task and the room, without TextWorld's banner."""
    room, _, task = first.text.removeprefix(_WELCOME).rpartition("\n\n")
    return f"{task}\n{room}"


def _with_actions(text: str, observation: Observation, show_actions: str) -> str:
    if show_actions == "none":
        return text
    if show_actions == "here":
        here = [a for a in observation.actions if a.startswith(ACTING)]
        return f"{text}\nHere: {'; '.join(here)}." if here else text
    numbered = "\n".join(f"{n}. {a}" for n, a in enumerate(observation.actions, 1))
    return f"{text}\nCommands:\n{numbered}"


def user_message(first: Observation, steps: Sequence[Step], history: str, show_actions: str) -> Message:
    """What the policy reads before its next turn."""
    if not steps:
        return {"role": "user", "content": _with_actions(opening(first), first, show_actions)}
    now = steps[-1].observation
    if history == "append_only":
        return {"role": "user", "content": _with_actions(now.text, now, show_actions)}
    past = "".join(f"\n> {s.action or '(no command)'}\n{s.observation.text}" for s in steps)
    return {"role": "user", "content": _with_actions(opening(first) + past, now, show_actions)}


def parse_action(text: str, observation: Observation, show_actions: str) -> ParsedAction:
    """The last boxed command; a boxed number names a command where all are listed."""
    boxed = _BOXED.findall(text)
    if not boxed:
        return ParsedAction(None, "no \\boxed{command}")
    action = " ".join(boxed[-1].split())
    if show_actions == "all" and action.isdecimal():
        if not 1 <= int(action) <= len(observation.actions):
            return ParsedAction(
                None, f"\\boxed{{{action}}}, but the commands are numbered 1 to {len(observation.actions)}"
            )
        return ParsedAction(observation.actions[int(action) - 1])
    return ParsedAction(action) if action else ParsedAction(None, "an empty \\boxed{}")


def judge_messages(trajectory: Trajectory, i: int, style: str) -> list[Message]:
    """The transcript up to turn i first, so that consecutive turns share a cached prefix; then the question."""
    opened = opening(Observation(trajectory.first_observation))
    past = "".join(f"\n> {t.action or '(no command)'}\n{t.observation}" for t in trajectory.turns[: i + 1])
    question = "Judge the last step." if style == "compact" else f"Is step {i + 1}, the last one, good or bad?"
    user: Message = {"role": "user", "content": f"{opened}{past}\n{question}"}
    return [user] if style == "compact" else [{"role": "system", "content": JUDGE_SYSTEM}, user]


def parse_score(text: str) -> tuple[int | None, str]:
    """The score of an evaluation: exactly one boxed value, which must be 1 or -1."""
    boxed = _BOXED.findall(text)
    if len(boxed) != 1:
        return None, f"{len(boxed)} boxed scores, expected one"
    score = _SCORES.get(boxed[0].strip())
    return (score, "") if score is not None else (None, f"boxed {boxed[0]!r}, expected 1 or -1")


def rewrite_messages(
    sentence: str, facts: str, direction: Direction, accuracy: float, critic: str, style: str
) -> list[Message]:
    """The scene, the critic's words, the task and the wish."""
    user: Message = {
        "role": "user",
        "content": f"Room: {facts}\nCritic: {critic or 'none'}\nTask: {sentence}\nSolved: {accuracy:.0%}\n"
        f"Make it {direction}.",
    }
    return [user] if style == "compact" else [{"role": "system", "content": REWRITE_SYSTEM}, user]


def parse_proposal(text: str) -> str | None:
    """The last boxed sentence of a rewrite."""
    boxed = _BOXED.findall(text)
    return " ".join(boxed[-1].split()) if boxed else None


def action_response(thought: str, action: str) -> str:
    """A demonstration's response."""
    return f"{thought} \\boxed{{{action}}}"


def score_response(reason: str, score: int) -> str:
    """A demonstration's evaluation."""
    return f"{reason} \\boxed{{{score}}}"
