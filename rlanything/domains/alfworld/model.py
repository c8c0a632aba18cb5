"""What an ALFWorld game is made of: goal, receptacles, objects, and the state that actions change."""

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
    """When a game is won. Types as ALFRED writes them ("AlarmClock"). LOOK alone has a lamp, and no receptacle."""

    kind: GoalKind
    object_type: str
    receptacle_type: str | None = None
    lamp_type: str | None = None


@dataclass(frozen=True, slots=True)
class Receptacle:
    """Furniture: never moves. `index`: its place in `Game.receptacles`; `location`: where the agent stands at it."""

    index: int
    id: str
    name: str
    type: str
    location: str
    openable: bool


@dataclass(frozen=True, slots=True)
class Object:
    """A thing. `index`: its place in `Game.objects`; `inside`: indices of what it holds, where `is_container`."""

    index: int
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


class State:
    """Everything that actions change. Sets of objects or receptacles are bit masks over their indices.

    `contents[r]` and `places[o]` are the same relation seen from both ends, as sorted indices. `locations[o]` is
    where an object counts as being for `look` and `slice`, which the domain tracks apart from its receptacles.
    `removed` are the (object, receptacle) pairs that a take has undone.
    """

    __slots__ = (
        "location", "held", "contents", "places", "locations", "removed",
        "opened", "hot", "cool", "clean", "sliced", "toggled",
    )  # fmt: skip
    location: str
    held: int | None
    contents: list[tuple[int, ...]]
    places: list[tuple[int, ...]]
    locations: list[tuple[str, ...]]
    removed: frozenset[tuple[int, int]]
    opened: int
    hot: int
    cool: int
    clean: int
    sliced: int
    toggled: int

    def copy(self) -> State:
        """An independent copy: three short lists, everything else is immutable and shared."""
        new = State.__new__(State)
        new.location, new.held, new.removed = self.location, self.held, self.removed
        new.contents, new.places, new.locations = self.contents.copy(), self.places.copy(), self.locations.copy()
        new.opened, new.hot, new.cool = self.opened, self.hot, self.cool
        new.clean, new.sliced, new.toggled = self.clean, self.sliced, self.toggled
        return new


@dataclass(frozen=True, slots=True, eq=False)
class Game:
    """One game. `receptacles` and `objects` are in the order of their ids, which is the order of TextWorld's lists.

    `accepts` holds the (receptacle type, object type) pairs that may be combined. `sentence` is the task without
    "Your task is to: ". `initial` must not be written to: copy it.
    """

    source: str
    sentence: str
    goal: Goal
    receptacles: tuple[Receptacle, ...]
    objects: tuple[Object, ...]
    accepts: frozenset[tuple[str, str]]
    sink_types: frozenset[str]
    walkthrough: tuple[str, ...]
    help_text: str
    initial: State
    receptacle_named: dict[str, Receptacle]
    object_named: dict[str, Object]
    at_location: dict[str, tuple[Receptacle, ...]]

    @property
    def task_line(self) -> str:
        """The sentence as the first observation shows it."""
        return TASK_PREFIX + self.sentence

    def with_goal(self, goal: Goal, sentence: str) -> Game:
        """The same room with another task; shares all but the goal. The walkthrough, now wrong, is dropped."""
        return replace(self, goal=goal, sentence=sentence, walkthrough=())

    def can_hold(self, receptacle: Receptacle, thing: Object) -> bool:
        """True where `thing` may be put into or onto `receptacle`."""
        return (receptacle.type, thing.type) in self.accepts

    def contents(self, receptacle: Receptacle) -> list[Object]:
        """What is in or on a receptacle at the start."""
        return [self.objects[o] for o in self.initial.contents[receptacle.index]]

    def places(self, thing: Object) -> list[Receptacle]:
        """Where an object is at the start: none, one or several receptacles."""
        return [self.receptacles[r] for r in self.initial.places[thing.index]]
