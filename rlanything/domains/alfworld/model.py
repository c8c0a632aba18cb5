"""The data of an ALFWorld game: goal, receptacles, objects, and the state that commands change.

Types are written as ALFRED writes them ("AlarmClock"), names as the text shows them ("alarmclock 1").
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

TASK_PREFIX = "Your task is to: "


class GoalKind(StrEnum):
    """The six task types of ALFWorld."""

    SIMPLE = "pick_and_place_simple"
    TWO = "pick_two_obj_and_place"
    LOOK = "look_at_obj_in_light"
    CLEAN = "pick_clean_then_place_in_recep"
    HEAT = "pick_heat_then_place_in_recep"
    COOL = "pick_cool_then_place_in_recep"


@dataclass(frozen=True, slots=True)
class Goal:
    """What wins a game."""

    kind: GoalKind
    object_type: str
    receptacle_type: str | None = None
    """Where the object must be put; None for LOOK."""
    lamp_type: str | None = None
    """The lamp to look at the object under; None unless the kind is LOOK."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receptacle:
    """A piece of furniture that holds objects and never moves."""

    index: int
    """Position in `Game.receptacles`."""
    id: str
    name: str
    type: str
    location: str
    """Where the agent stands when it is at the receptacle. Several receptacles may share one location."""
    openable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Object:
    """A thing in the room."""

    index: int
    """Position in `Game.objects`."""
    id: str
    name: str
    type: str
    pickupable: bool
    cleanable: bool
    heatable: bool
    coolable: bool
    toggleable: bool
    sliceable: bool
    is_container: bool
    inside: tuple[int, ...]
    """Indices of the objects that a container holds."""


@dataclass(slots=True, kw_only=True)
class State:
    """Everything that commands change. Sets of objects or receptacles are bit masks over their indices."""

    location: str
    """Where the agent stands."""
    held: int | None
    """Index of the object in the agent's hand."""
    contents: list[tuple[int, ...]]
    """Sorted indices of the objects in or on each receptacle."""
    places: list[tuple[int, ...]]
    """Sorted indices of the receptacles that each object is in or on: `contents`, seen from the objects."""
    locations: list[tuple[str, ...]]
    """Where each object is for `look` and `slice`. The PDDL domain tracks this apart from the receptacles."""
    removed: frozenset[tuple[int, int]]
    """(object, receptacle) pairs that a take has separated."""
    opened: int
    hot: int
    cool: int
    clean: int
    sliced: int
    toggled: int

    def copy(self) -> State:
        """Make an independent copy. Only three short lists are copied: everything else is immutable."""
        new = State.__new__(State)  # five times as fast as dataclasses.replace
        new.location, new.held, new.removed = self.location, self.held, self.removed
        new.contents, new.places, new.locations = self.contents.copy(), self.places.copy(), self.locations.copy()
        new.opened, new.hot, new.cool = self.opened, self.hot, self.cool
        new.clean, new.sliced, new.toggled = self.clean, self.sliced, self.toggled
        return new


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Game:
    """One game, which all its episodes share."""

    source: str
    """Where the game comes from; it names the game in errors."""
    sentence: str
    """The task, without "Your task is to: "."""
    goal: Goal
    receptacles: tuple[Receptacle, ...]
    """In the order of their ids, which is the order of TextWorld's lists."""
    objects: tuple[Object, ...]
    """In the order of their ids."""
    accepts: frozenset[tuple[str, str]]
    """(receptacle type, object type) pairs: what may be put where."""
    sink_types: frozenset[str]
    """Receptacle types at which objects can be cleaned."""
    walkthrough: tuple[str, ...]
    """Commands that win the game, as its file has them."""
    help_text: str
    """The answer to `help`."""
    initial: State
    """The state at the start. Copy it before writing to it."""
    receptacle_named: dict[str, Receptacle]
    object_named: dict[str, Object]
    at_location: dict[str, tuple[Receptacle, ...]]

    @property
    def task_line(self) -> str:
        """The sentence as the first observation shows it."""
        return TASK_PREFIX + self.sentence

    def with_goal(self, goal: Goal, sentence: str) -> Game:
        """Set another task in the same room, without a walkthrough. The room's data is shared."""
        return replace(self, goal=goal, sentence=sentence, walkthrough=())

    def can_hold(self, receptacle: Receptacle, thing: Object) -> bool:
        """Say whether `thing` may be put into or onto `receptacle`."""
        return (receptacle.type, thing.type) in self.accepts

    def contents(self, receptacle: Receptacle) -> list[Object]:
        """List the objects that are in or on a receptacle at the start."""
        return [self.objects[o] for o in self.initial.contents[receptacle.index]]

    def places(self, thing: Object) -> list[Receptacle]:
        """List the receptacles that an object is in or on at the start: none, one or several."""
        return [self.receptacles[r] for r in self.initial.places[thing.index]]
