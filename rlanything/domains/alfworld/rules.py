"""The rules of the ALFRED text domain that simulator and planner share. Source: alfworld's alfred.pddl."""

from dataclasses import dataclass

from rlanything.domains.alfworld.model import Game, Goal, GoalKind, Object, Receptacle, State

KNIVES = ("Knife", "ButterKnife")


@dataclass(frozen=True, kw_only=True)
class Treatment:
    """Something that an appliance does to an object."""

    verb: str
    """The command."""
    ability: str
    """The flag of an Object that can be treated."""
    state: str
    """The bit mask of a State that holds the treated objects."""
    appliance: str
    """The receptacle type that treats objects."""


TREATMENTS = {
    GoalKind.CLEAN: Treatment(verb="clean", ability="cleanable", state="clean", appliance="SinkBasin"),
    GoalKind.HEAT: Treatment(verb="heat", ability="heatable", state="hot", appliance="Microwave"),
    GoalKind.COOL: Treatment(verb="cool", ability="coolable", state="cool", appliance="Fridge"),
}
"""The treatment that each kind of goal asks for, if it asks for one."""


def can_treat(game: Game, treatment: Treatment, thing: Object, receptacle: Receptacle) -> bool:
    """Say whether a held object can be treated at a receptacle. The receptacle may be closed."""
    if not getattr(thing, treatment.ability):
        return False
    if treatment.verb == "clean":
        return receptacle.type in game.sink_types
    return receptacle.type == treatment.appliance


def goal_met(game: Game, state: State) -> bool:
    """Say whether a state satisfies the game's goal."""
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
    """Say whether an object is what the goal asks for, or can become so by its treatment."""
    if thing.type != goal.object_type:
        return False
    treatment = TREATMENTS.get(goal.kind)
    return treatment is None or getattr(thing, treatment.ability)


def is_treated(o: int, state: State, goal: Goal) -> bool:
    """Say whether the object with index `o` had the treatment that the goal asks for, if it asks for one."""
    treatment = TREATMENTS.get(goal.kind)
    return treatment is None or bool(getattr(state, treatment.state) >> o & 1)


def _lit_here(game: Game, state: State) -> bool:
    """Say whether a lamp of the goal's type was turned on and stands where the agent is."""
    for receptacle in game.at_location.get(state.location, ()):
        for o in state.contents[receptacle.index]:
            lamp = game.objects[o]
            if lamp.type == game.goal.lamp_type and lamp.toggleable and state.toggled >> o & 1:
                return True
    return False
