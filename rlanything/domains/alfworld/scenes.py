"""A floor plan filled with objects: what stands where follows the frequencies of real ALFWorld scenes.

Left out, as rare in real games (0.7 % of objects): things inside movable containers (a fork in a mug).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache

from rlanything.domains.alfworld.floorplans import (
    GRID,
    FloorPlan,
    Furniture,
    floor_plan,
    location_id,
    object_id,
    package_module,
    placement,
)
from rlanything.domains.alfworld.model import Goal, GoalKind

MIN_SPREAD = 0.05  # [m]; two objects on one hook still differ in their ids
NUM_DRAW = 20  # places tried for an object before a full receptacle is accepted


@dataclass(frozen=True)
class Difficulty:
    """How far a game departs from the real ones; the defaults are the real distribution.

    `goal_exponent`: 1 asks for goals as often as real games do, 0 for all possible ones alike, above 1 for the usual
    ones. `hidden` scales the odds that a target starts in a closed container. `distractors` scales the number of
    bystander objects, `spare_copies` the number of targets beyond those that the goal needs.
    """

    goal_exponent: float = 1.0
    hidden: float = 1.0
    distractors: float = 1.0
    spare_copies: float = 1.0

    def __post_init__(self) -> None:
        for name in ("hidden", "distractors", "spare_copies"):
            if getattr(self, name) < 0:
                raise ValueError(f"difficulty.{name} is {getattr(self, name)}: expected 0 or more")

    @classmethod
    def at(cls, level: float) -> Difficulty:
        """Anything between easy (0), medium (0.5, the real distribution) and hard (1)."""
        if not 0 <= level <= 1:
            raise ValueError(f"difficulty level {level}: expected 0 (easy) to 1 (hard)")
        x = 2 * level - 1
        hidden = 1 + x if x < 0 else 10.0**x
        return cls(goal_exponent=1 - x, hidden=hidden, distractors=1 + 0.5 * x, spare_copies=1 - x)


PRESETS = {"easy": Difficulty.at(0.0), "medium": Difficulty(), "hard": Difficulty.at(1.0)}


@dataclass(frozen=True)
class Thing:
    """An object at the start. `receptacles` is empty on the floor and may hold two (a pan across two burners)."""

    id: str
    type: str
    receptacles: tuple[Furniture, ...]
    location: str


@dataclass
class Scene:
    """A furnished floor plan. `start` is the agent's pose."""

    plan: FloorPlan
    things: list[Thing] = field(default_factory=list)
    start: str = ""

    def of_type(self, kind: str) -> list[Thing]:
        """All objects of a type."""
        return [thing for thing in self.things if thing.type == kind]


def movable_types(plan: FloorPlan) -> list[str]:
    """Object types of a floor plan that can be picked up."""
    return [t for t in plan.object_types if t in placement()["copies"]]


@cache
def options(number: int, kind: str) -> tuple[tuple[Furniture | None, ...], tuple[float, ...]]:
    """Where objects of a type may start in a floor plan (None: the floor) and how often they do.

    A type that no real scene of the room has in any of these receptacles goes where the domain lets it be put.
    """
    plan = floor_plan(number)
    rates = placement()["places"].get(plan.room, {}).get(kind, {})
    found = [(r, rates[r.type]) for r in plan.receptacles if r.type in rates]
    where: list[tuple[Furniture | None, float]] = [*found]
    if rates.get("floor"):
        where.append((None, rates["floor"]))
    if not where:
        accepts = package_module("constants").VAL_RECEPTACLE_OBJECTS
        where = [(r, 1.0) for r in plan.receptacles if kind in accepts.get(r.type, ())] or [(None, 1.0)]
    receptacles, weights = zip(*where, strict=True)
    return receptacles, weights


def _also_in(kind: str, first: Furniture, plan: FloorPlan, rng: random.Random) -> tuple[Furniture, ...]:
    """A receptacle and, where such overlaps are usual, the nearest one of a second type."""
    for second, probability in placement()["also"].get(kind, {}).get(first.type, {}).items():
        others = [r for r in plan.receptacles if r.type == second and r is not first]
        if others and rng.random() < probability:
            x, _, z = first.position
            return first, min(others, key=lambda r: (r.position[0] - x) ** 2 + (r.position[2] - z) ** 2)
    return (first,)


def _position(holder: Furniture, rng: random.Random) -> tuple[float, float, float]:
    """A plausible position [m] on or in a receptacle."""
    spread, above, height, absolute = placement()["shape"].get(holder.type, (0.1, 0.0, 0.0, 0))
    spread = max(spread, MIN_SPREAD)
    x, y, z = holder.position
    return x + spread * rng.uniform(-1, 1), height if absolute else y + above, z + spread * rng.uniform(-1, 1)


class Furnisher:
    """Places objects into one scene, one after the other. `full` counts what each receptacle holds."""

    def __init__(self, plan: FloorPlan, rng: random.Random) -> None:
        self.scene = Scene(plan)
        self.rng = rng
        self.ids: set[str] = set()
        self.full: dict[str, int] = {}

    def add(self, thing: Thing) -> None:
        """Add an object whose place is decided."""
        self.scene.things.append(thing)
        self.ids.add(thing.id)
        for r in thing.receptacles:
            self.full[r.id] = self.full.get(r.id, 0) + 1

    def place(
        self, kind: str, where: tuple[Furniture | None, ...], weights: tuple[float, ...], alone: str | None = None
    ) -> None:
        """Add an object of a type in one of `where`; where one of two receptacles at once is of type `alone`, only in
        the first: else taking it from the other would leave the goal met without putting it anywhere."""
        plan, rng, capacity = self.scene.plan, self.rng, placement()["capacity"]
        holders: tuple[Furniture, ...] = ()
        for _ in range(NUM_DRAW):
            first = rng.choices(where, weights)[0]
            holders = () if first is None else _also_in(kind, first, plan, rng)
            if alone in [r.type for r in holders]:
                holders = holders[:1]
            if all(self.full.get(r.id, 0) < capacity.get(r.type, 1) for r in holders):
                break
        while True:
            if holders:
                position, location = _position(holders[0], rng), holders[0].location
            else:
                x, z = rng.choice(plan.points)
                position, location = (GRID * x + rng.uniform(-0.5, 0.5), 0.0, GRID * z + rng.uniform(-0.5, 0.5)), ""
                location = location_id(x, z, rng.randrange(4), 60)
            name = object_id(kind, position)
            if name not in self.ids:
                return self.add(Thing(name, kind, holders, location))


@cache
def fixed_things(number: int) -> tuple[Thing, ...]:
    """Lamps, televisions, chairs and the like: where they stand is part of the floor plan, the same in every game."""
    plan = floor_plan(number)
    furnisher = Furnisher(plan, random.Random(number))
    for kind, count in placement()["statics"][plan.room].items():
        if kind in plan.object_types and kind not in placement()["copies"]:
            for _ in range(count):
                furnisher.place(kind, *options(number, kind))
    return tuple(furnisher.scene.things)


def _scaled(count: int, factor: float, rng: random.Random) -> int:
    """count * factor, rounded up or down at random so that the mean is exact."""
    return int(count * factor + rng.random())


def forbidden_receptacle(goal: Goal) -> str | None:
    """The receptacle type no target may start in: it would be done already."""
    if goal.kind in (GoalKind.SIMPLE, GoalKind.TWO):
        return goal.receptacle_type
    return "Fridge" if goal.kind is GoalKind.COOL else None


def target_options(number: int, goal: Goal) -> tuple[tuple[Furniture, ...], tuple[float, ...]]:
    """Where the target objects of a goal may start; empty where the floor plan has no such place."""
    forbidden = forbidden_receptacle(goal)
    places = zip(*options(number, goal.object_type), strict=True)
    allowed = [(r, w) for r, w in places if r is not None and r.type != forbidden]
    return tuple(r for r, _ in allowed), tuple(w for _, w in allowed)


def furnish(number: int, goal: Goal, rng: random.Random, difficulty: Difficulty) -> Scene:
    """A scene in which the goal is not yet met and, by construction, can be."""
    plan, table = floor_plan(number), placement()
    furnisher = Furnisher(plan, rng)
    for thing in fixed_things(number):
        furnisher.add(thing)
    where, weights = target_options(number, goal)
    odds = difficulty.hidden * table["target_hidden"]
    tuned = tuple(w * (odds if r.openable else 1.0) for r, w in zip(where, weights, strict=True))
    need = 2 if goal.kind is GoalKind.TWO else 1
    copies = rng.choices(range(1, 5), table["target_copies"][goal.kind])[0]
    for _ in range(need + _scaled(copies - need, difficulty.spare_copies, rng)):
        furnisher.place(goal.object_type, where, tuned if any(tuned) else weights, goal.receptacle_type)
    for kind in movable_types(plan):
        if kind != goal.object_type:
            usual = rng.choices(range(1, 5), table["copies"][kind])[0]
            for _ in range(_scaled(usual, difficulty.distractors, rng)):
                furnisher.place(kind, *options(number, kind))
    poses = {r.location for r in plan.receptacles}
    while not furnisher.scene.start or furnisher.scene.start in poses:
        x, z = rng.choice(plan.points)
        furnisher.scene.start = location_id(x, z, rng.randrange(4), 30)
    return furnisher.scene
