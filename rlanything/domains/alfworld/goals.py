"""States goals as ALFWorld does: in sentences, in PDDL and in traj_data.json.

Templates and PDDL are those of alfworld's goal_library. The files of alfworld's wheel are read by path, because
importing `alfworld` imports TextWorld too.
"""

import importlib.util
import re
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from rlanything.domains.alfworld.model import TASK_PREFIX, Game, Goal, GoalKind
from rlanything.domains.alfworld.rules import TREATMENTS
from rlanything.domains.parts import RejectedTask
from rlanything.errors import ClearError

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
    matches = [(kind, match) for kind, pattern in _PATTERNS if (match := pattern.fullmatch(text))]
    if not matches:
        raise RejectedTask("unparsable", f"no task template fits {sentence!r}")
    kind, match = matches[0]
    thing, place = match["o"], match["r"]
    objects = {o.type.lower(): o.type for o in game.objects}
    places = objects if kind is GoalKind.LOOK else {r.type.lower(): r.type for r in game.receptacles}
    if thing not in objects:
        raise RejectedTask("unknown_object", f"the room has no {thing!r}")
    if place not in places:
        raise RejectedTask("unknown_receptacle", f"the room has no {place!r}")
    if kind is GoalKind.LOOK:
        return Goal(kind, objects[thing], lamp_type=places[place])
    return Goal(kind, objects[thing], places[place])


def goals_of(game: Game) -> list[Goal]:
    """List every goal that the types in the room allow. The planner decides which of them can be won."""
    movable = {o.type: o for o in game.objects if o.pickupable}
    count = Counter(o.type for o in game.objects if o.pickupable)
    places = {r.type: r for r in game.receptacles}
    lamps = {o.type for o in game.objects if o.toggleable}
    goals = [Goal(GoalKind.LOOK, kind, None, lamp) for kind in movable for lamp in lamps]
    for kind, thing in movable.items():
        for place, receptacle in places.items():
            if not game.can_hold(receptacle, thing):
                continue
            goals.append(Goal(GoalKind.SIMPLE, kind, place))
            goals += [Goal(k, kind, place) for k, t in TREATMENTS.items() if getattr(thing, t.ability)]
            if count[kind] > 1:
                goals.append(Goal(GoalKind.TWO, kind, place))
    return sorted(goals, key=str)


class AlfworldMissing(ClearError, RuntimeError):
    """The alfworld package, or a file of it, is missing."""


@cache
def package_folder() -> Path:
    """Find the folder of the installed alfworld package without importing it. Raises AlfworldMissing."""
    spec = importlib.util.find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        raise AlfworldMissing(
            "the Python package alfworld is not installed, whose data files state goals and floor plans; "
            "run `pip install --no-deps alfworld==0.4.2`"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def package_file(*parts: str) -> Path:
    """Find a file of the alfworld package. Raises AlfworldMissing, which names the file."""
    path = package_folder().joinpath(*parts)
    if not path.is_file():
        raise AlfworldMissing(f"{path}: no such file, expected one of alfworld==0.4.2; reinstall that version")
    return path


@cache
def package_module(name: str) -> ModuleType:
    """Load the module `constants` or `goal_library` of alfworld.gen alone."""
    spec = importlib.util.spec_from_file_location(f"_alfworld_{name}", package_file("gen", f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def goal_pddl(goal: Goal) -> str:
    """Write the `(:goal ...)` section, which also closes the problem."""
    text: str = package_module("goal_library").gdict[goal.kind]["pddl"]
    filled = text.format(obj=goal.object_type, recep=goal.receptacle_type, toggle=goal.lamp_type)
    return filled.replace("#", "-").strip()


def pddl_params(goal: Goal) -> dict[str, Any]:
    """Return `pddl_params` of traj_data.json."""
    return {
        "mrecep_target": "",
        "object_sliced": False,
        "object_target": goal.object_type,
        "parent_target": goal.receptacle_type or "",
        "toggle_target": goal.lamp_type or "",
    }
