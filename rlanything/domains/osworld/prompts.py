"""The prompts of agents that see a screen: the policy's, the judge's and the rewriter's."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlanything.domains.base import Observation, Step
from rlanything.domains.osworld.actions import LAST, NEEDS, STATUSES, TOOL, spoken
from rlanything.domains.parts import conversation
from rlanything.types import Direction, Message, Tool, Trajectory, assistant, system, user, user_parts

POLICY_SYSTEM = (
    "You operate a computer. Each message shows the screen as it is now. In each turn think about what is on the "
    "screen and what the task still needs, then write one line `Action: ...` that says what you do next, then exactly "
    f"one call of {TOOL}. Coordinates run from 0 to {LAST} in both directions. Call terminate with success once the "
    "task is done, and with failure if this computer cannot do it."
)
JUDGE_SYSTEM = (
    "You judge single steps of an agent that operates a computer. You read the task, what the agent did before, and "
    "the step, and you see the screen before and after it. A step is good if it brings the task nearer to its end; it "
    "is bad if it misses, does nothing, or has to be undone. Reason briefly about this step only, then give "
    "\\boxed{1} for good or \\boxed{-1} for bad."
)
REWRITE_SYSTEM = (
    "You choose tasks for an agent that operates a computer. You read the checks that exist for this computer, each "
    "with an instruction, the task as it is now, and how the agent does on it. Choose a check that makes the task "
    "easier or harder as asked, or keep the check and write its instruction with more or fewer hints. The instruction "
    'must ask for exactly what the check tests. Answer with one JSON object {"check": "instruction"}, or '
    '{"check": null} if the check\'s own instruction serves.'
)
DESCRIPTIONS = {
    "keys": {"type": "array", "items": {"type": "string"}, "description": "Keys pressed together."},
    "text": {"type": "string", "description": "What is typed."},
    "coordinate": {
        "type": "array",
        "items": {"type": "integer"},
        "description": f"[x, y], each from 0 to {LAST}. left_click_drag drags from where the pointer is.",
    },
    "pixels": {"type": "integer", "description": "How far to scroll; above 0 is up, or right."},
    "time": {"type": "number", "description": "Seconds to wait."},
    "status": {"type": "string", "enum": list(STATUSES), "description": "How the task ended."},
}


def tools(style: str) -> list[Tool]:
    """The tool of all actions, for the chat template; none in the compact style."""
    if style == "compact":
        return []
    properties: dict[str, Any] = {"action": {"type": "string", "enum": list(NEEDS)}, **DESCRIPTIONS}
    parameters = {"type": "object", "properties": properties, "required": ["action"]}
    described = "Use the mouse and the keyboard of the computer, wait, or end the task."
    return [{"type": "function", "function": {"name": TOOL, "description": described, "parameters": parameters}}]


def opening(instruction: str, first: Observation, style: str) -> list[Message]:
    """The policy's prompt before its first turn."""
    asked = user(f"Task: {instruction}", first.images)
    return [asked] if style == "compact" else [system(POLICY_SYSTEM), asked]


def retold(instruction: str, first: Observation, steps: Sequence[Step], num_screen: int, style: str) -> list[Message]:
    """The policy's prompt after some steps, rendered anew: what was done, and the last `num_screen` screens with the
    responses to them."""
    screens = [first.images, *(step.observation.images for step in steps)]
    start = max(0, len(screens) - num_screen)
    done = "".join(f"\nStep {i}: {spoken(step.response)}" for i, step in enumerate(steps[:start], 1))
    messages = opening(f"{instruction}{done}", Observation("", images=screens[start]), style)
    for step, images in zip(steps[start:], screens[start + 1 :], strict=True):
        messages += [assistant(step.response), user("", images)]
    return messages


def judge(instruction: str, trajectory: Trajectory, i: int, style: str) -> list[Message]:
    """The prompt about turn i. The words that turns share come first, the screens before and after it last."""
    past = "".join(f"\nStep {k}: {spoken(turn.text)}" for k, turn in enumerate(trajectory.turns[:i], 1))
    turn = trajectory.turns[i]
    asked, done = f"Task: {instruction}{past}\nBefore the step: ", f"\nThe step: {turn.text}\nAfter the step: "
    question = user_parts(asked, trajectory.images_before(i), done, turn.images)
    return [question] if style == "compact" else [system(JUDGE_SYSTEM), question]


def rewrite(
    checks: Mapping[str, str], now: tuple[str, str], direction: Direction, accuracy: float, critic: str, style: str
) -> list[Message]:
    """The prompt for a variant. `checks` are the instructions of a family's verifiers by name, `now` is the name of
    the task's verifier and the task's instruction."""
    listed = "\n".join(f"{name}: {text}" for name, text in checks.items())
    asked = (
        f"Checks:\n{listed}\nTask: {': '.join(now)}\nSolved: {accuracy:.0%}\nCritic: {critic or 'none'}\n"
        f"Make it {direction}."
    )
    return conversation(REWRITE_SYSTEM, asked, style)
