"""The rules of the ALFRED text domain that the simulator and the planner share. Source: alfworld's alfred.pddl."""

from __future__ import annotations

from rlanything.domains.alfworld.model import Game, Goal, GoalKind, Object, Receptacle, State

KNIVES = ("Knife", "ButterKnife")
TREATMENTS = ("clean", "cool", "heat")


def can_treat(game: Game, verb: str, thing: Object, receptacle: Receptacle) -> bool:
    """True where "clean", "heat" or "cool" works on a held object at this receptacle, open or closed."""
    if verb == "clean":
        return thing.cleanable and receptacle.type in game.sink_types
    if verb == "heat":
        return thing.heatable and receptacle.type == "Microwave"
    return thing.coolable and receptacle.type == "Fridge"


def goal_met(game: Game, state: State) -> bool:
    """True where the state satisfies the game's goal."""
    goal = game.goal
    if goal.kind is GoalKind.LOOK:
        held = state.held
        return held is not None and game.objects[held].type == goal.object_type and _lit_here(game, state)
    needed = 2 if goal.kind is GoalKind.TWO else 1
    for receptacle, contents in zip(game.receptacles, state.contents, strict=True):
        if contents and receptacle.type == goal.receptacle_type:
            if sum(is_wanted(game.objects[o], goal) and is_treated(o, state, goal) for o in contents) >= needed:
                return True
    return False


def is_wanted(thing: Object, goal: Goal) -> bool:
    """True where an object is, or by a treatment can become, what the goal asks for."""
    if thing.type != goal.object_type:
        return False
    if goal.kind is GoalKind.CLEAN:
        return thing.cleanable
    if goal.kind is GoalKind.HEAT:
        return thing.heatable
    return thing.coolable if goal.kind is GoalKind.COOL else True


def is_treated(o: int, state: State, goal: Goal) -> bool:
    """True where the object with index `o` is as clean, hot or cool as the goal asks (always, where it does not)."""
    if goal.kind is GoalKind.CLEAN:
        return bool(state.clean >> o & 1)
    if goal.kind is GoalKind.HEAT:
        return bool(state.hot >> o & 1)
    return bool(state.cool >> o & 1) if goal.kind is GoalKind.COOL else True


def _lit_here(game: Game, state: State) -> bool:
    """True where a lamp of the goal's type was turned on and stands at the agent's place."""
    for receptacle in game.at_location.get(state.location, ()):
        for o in state.contents[receptacle.index]:
            lamp = game.objects[o]
            if lamp.type == game.goal.lamp_type and lamp.toggleable and state.toggled >> o & 1:
                return True
    return False
