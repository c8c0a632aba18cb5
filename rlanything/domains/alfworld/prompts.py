"""Every prompt of the ALFWorld domain, and what is read out of the answers.

Two styles: `full` explains the rules and suits instruct models; `compact` holds the observations alone and suits
tiny models that learned the rules from demonstrations. Both answer in \\boxed{...}.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlanything.domains.answers import boxed
from rlanything.domains.base import Observation, ParsedAction, Step
from rlanything.domains.parts import conversation
from rlanything.types import Direction, Message, Trajectory, user

_WELCOME = "-= Welcome to TextWorld, ALFRED! =-\n\n"
# Commands that change something where one stands; going and looking are always known.
ACTING = ("take ", "move ", "open ", "close ", "use ", "heat ", "cool ", "clean ", "slice ")

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


def opening_messages(first: Observation, style: str, show_actions: str) -> list[Message]:
    """What the policy reads before its first turn."""
    return conversation(POLICY_SYSTEM, _with_actions(opening(first), first, show_actions), style)


def answer_messages(observation: Observation, show_actions: str) -> list[Message]:
    """What the policy reads after a turn."""
    return [user(_with_actions(observation.text, observation, show_actions))]


def retold_messages(first: Observation, steps: Sequence[Step], style: str, show_actions: str) -> list[Message]:
    """What the policy reads if everything is rendered anew."""
    past = "".join(f"\n> {s.action or '(no command)'}\n{s.observation.text}" for s in steps)
    return conversation(POLICY_SYSTEM, _with_actions(opening(first) + past, steps[-1].observation, show_actions), style)


def parse_action(text: str, observation: Observation, show_actions: str) -> ParsedAction:
    """The last boxed command; a boxed number names a command where all are listed."""
    found = boxed(text)
    if not found:
        return ParsedAction(None, "no \\boxed{command}")
    action = found[-1]
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
    return conversation(JUDGE_SYSTEM, f"{opened}{past}\n{question}", style)


def rewrite_messages(
    sentence: str, facts: str, direction: Direction, accuracy: float, critic: str, style: str
) -> list[Message]:
    """The scene, the critic's words, the task and the wish."""
    asked = f"Room: {facts}\nCritic: {critic or 'none'}\nTask: {sentence}\nSolved: {accuracy:.0%}\nMake it {direction}."
    return conversation(REWRITE_SYSTEM, asked, style)


def parse_proposal(text: str) -> str | None:
    """The last boxed sentence of a rewrite."""
    found = boxed(text)
    return found[-1] if found else None


def action_response(thought: str, action: str) -> str:
    """A demonstration's response."""
    return f"{thought} \\boxed{{{action}}}"


def score_response(reason: str, score: int) -> str:
    """A demonstration's evaluation."""
    return f"{reason} \\boxed{{{score}}}"
