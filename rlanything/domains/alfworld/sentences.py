"""Reads and writes task sentences, by ALFWorld's two templates for each task type."""

from __future__ import annotations

import re

from rlanything.domains.alfworld.model import TASK_PREFIX, Game, Goal, GoalKind
from rlanything.domains.parts import RejectedTask

# {o} is the object, {r} the receptacle or lamp. Source: alfworld's goal_library.
TEMPLATES: dict[GoalKind, tuple[str, str]] = {
    GoalKind.SIMPLE: ("put a {o} in {r}.", "put some {o} on {r}."),
    GoalKind.TWO: ("put two {o} in {r}.", "find two {o} and put them in {r}."),
    GoalKind.LOOK: ("look at {o} under the {r}.", "examine the {o} with the {r}."),
    GoalKind.CLEAN: ("put a clean {o} in {r}.", "clean some {o} and put it in {r}."),
    GoalKind.HEAT: ("put a hot {o} in {r}.", "heat some {o} and put it in {r}."),
    GoalKind.COOL: ("put a cool {o} in {r}.", "cool some {o} and put it in {r}."),
}
_PATTERNS = [
    (kind, re.compile(re.escape(t).replace(r"\{o\}", "(?P<o>[a-z]+)").replace(r"\{r\}", "(?P<r>[a-z]+)")))
    for kind in reversed(GoalKind)
    for t in TEMPLATES[kind]
]


def write_sentence(goal: Goal, variant: int = 0) -> str:
    """Write the sentence of a goal by its template number `variant` (0 or 1)."""
    place = goal.lamp_type or goal.receptacle_type or ""
    return TEMPLATES[goal.kind][variant].format(o=goal.object_type.lower(), r=place.lower())


def read_sentence(sentence: str, game: Game) -> Goal:
    """Return the goal that a sentence states, for the room of a game.

    Raises RejectedTask with reason `unparsable` (no template fits), `unknown_object` or `unknown_receptacle`.
    """
    text = " ".join(sentence.lower().split()).removeprefix(TASK_PREFIX.lower())
    text = text if text.endswith(".") else text + "."
    for kind, pattern in _PATTERNS:
        match = pattern.fullmatch(text)
        if match is None:
            continue
        objects = {o.type.lower(): o.type for o in game.objects}
        places = objects if kind is GoalKind.LOOK else {r.type.lower(): r.type for r in game.receptacles}
        thing, place = match["o"], match["r"]
        if thing not in objects:
            raise RejectedTask("unknown_object", f"the room has no {thing!r}")
        if place not in places:
            raise RejectedTask("unknown_receptacle", f"the room has no {place!r}")
        if kind is GoalKind.LOOK:
            return Goal(kind, objects[thing], None, places[place])
        return Goal(kind, objects[thing], places[place], None)
    raise RejectedTask("unparsable", f"no task template fits {sentence!r}")
