"""Fills floor plans with objects, which stand where they do as often as in real ALFWorld scenes.

No object starts inside a movable container (a fork in a mug): only 0.7 % of the objects of real games do.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from functools import cache

from alfworld_games.floorplans import GRID, FloorPlan, Furniture, floor_plan, location_id, object_id, placement
from rlanything.domains.alfworld.goals import package_module
from rlanything.domains.alfworld.model import Goal, GoalKind

MIN_SPREAD = 0.05  # [m]; ids state positions, so even two objects on one hook need different ones
NUM_DRAW = 20  # places drawn for an object before a full receptacle is accepted


@dataclass(frozen=True, kw_only=True)
class Difficulty:
    """How far generated games depart from real ones. The defaults are the distribution of real games.

    Raises ValueError if a factor is negative.
    """

    goal_exponent: float = 1.0
    """1 draws goals as often as real games ask for them, 0 all possible goals alike, more than 1 mostly usual ones."""
    hidden: float = 1.0
    """Factor on the odds that a target starts in a closed container."""
    distractors: float = 1.0
    """Factor on the number of objects that are no targets."""
    spare_copies: float = 1.0
    """Factor on the number of targets beyond those that the goal needs."""

    def __post_init__(self) -> None:
        for name in ("hidden", "distractors", "spare_copies"):
            if getattr(self, name) < 0:
                raise ValueError(f"difficulty.{name}: found {getattr(self, name)}, expected 0 or more")

    @classmethod
    def at(cls, level: float) -> Difficulty:
        """Interpolate between easy (0), medium (0.5, the distribution of real games) and hard (1)."""
        if not 0 <= level <= 1:
            raise ValueError(f"difficulty level: found {level}, expected 0 (easy) to 1 (hard)")
        x = 2 * level - 1
        hidden = 1 + x if x < 0 else 10.0**x
        return cls(goal_exponent=1 - x, hidden=hidden, distractors=1 + 0.5 * x, spare_copies=1 - x)


PRESETS = {"easy": Difficulty.at(0.0), "medium": Difficulty(), "hard": Difficulty.at(1.0)}


@dataclass(frozen=True, kw_only=True)
class Thing:
    """An object at the start."""

    id: str
    type: str
    receptacles: tuple[Furniture, ...]
    """Empty for an object on the floor. There may be two (a pan across two burners)."""
    location: str
    """The PDDL name of the pose from which the agent reaches it."""


@dataclass(kw_only=True)
class Scene:
    """A furnished floor plan."""

    plan: FloorPlan
    things: list[Thing] = field(default_factory=list)
    start: str = ""
    """The PDDL name of the agent's pose at the start."""

    def of_type(self, kind: str) -> list[Thing]:
        """List the objects of a type."""
        return [thing for thing in self.things if thing.type == kind]


def movable_types(plan: FloorPlan) -> list[str]:
    """List the object types of a floor plan that can be picked up."""
    return [t for t in plan.object_types if t in placement()["copies"]]


@cache
def starting_places(number: int, kind: str) -> tuple[tuple[Furniture | None, ...], tuple[float, ...]]:
    """Return where objects of a type may start in a floor plan (None: the floor), and how often they do.

    If no real scene has the type in a receptacle of this floor plan, it goes where the domain lets it be put.
    """
    plan = floor_plan(number)
    rates = placement()["places"].get(plan.room, {}).get(kind, {})
    places: list[tuple[Furniture | None, float]] = [(r, rates[r.type]) for r in plan.receptacles if r.type in rates]
    if rates.get("floor"):
        places.append((None, rates["floor"]))
    if not places:
        accepts = package_module("constants").VAL_RECEPTACLE_OBJECTS
        places = [(r, 1.0) for r in plan.receptacles if kind in accepts.get(r.type, ())] or [(None, 1.0)]
    receptacles, weights = zip(*places, strict=True)
    return receptacles, weights


def _overlapping(kind: str, first: Furniture, plan: FloorPlan, rng: random.Random) -> tuple[Furniture, ...]:
    """Return a receptacle and, as often as real objects overlap two, the nearest receptacle of a second type."""
    for second, probability in placement()["also"].get(kind, {}).get(first.type, {}).items():
        others = [r for r in plan.receptacles if r.type == second and r is not first]
        if others and rng.random() < probability:
            x, _, z = first.position
            return first, min(others, key=lambda r: (r.position[0] - x) ** 2 + (r.position[2] - z) ** 2)
    return (first,)


def _position(holder: Furniture, rng: random.Random) -> tuple[float, float, float]:
    """Draw a plausible position [m] on or in a receptacle."""
    spread, above, height, absolute = placement()["shape"].get(holder.type, (0.1, 0.0, 0.0, 0))
    spread = max(spread, MIN_SPREAD)
    x, y, z = holder.position
    return x + spread * rng.uniform(-1, 1), height if absolute else y + above, z + spread * rng.uniform(-1, 1)


class Furnisher:
    """Places objects into one scene, one after the other."""

    def __init__(self, plan: FloorPlan, rng: random.Random) -> None:
        self.scene = Scene(plan=plan)
        self.rng = rng
        self.ids: set[str] = set()
        self.occupied: Counter[str] = Counter()

    def add(self, thing: Thing) -> None:
        """Add an object whose place is decided."""
        self.scene.things.append(thing)
        self.ids.add(thing.id)
        self.occupied.update(r.id for r in thing.receptacles)

    def place(
        self, kind: str, places: tuple[Furniture | None, ...], weights: tuple[float, ...], exclusive: str | None = None
    ) -> None:
        """Add an object of a type in one of `places` (None: on the floor).

        An object that would be in two receptacles, one of them of type `exclusive`, is put in the first only. Otherwise
        the goal would be met by taking it out of the other one.
        """
        plan, rng, capacity = self.scene.plan, self.rng, placement()["capacity"]
        holders: tuple[Furniture, ...] = ()
        for _ in range(NUM_DRAW):
            first = rng.choices(places, weights)[0]
            holders = () if first is None else _overlapping(kind, first, plan, rng)
            if exclusive in [r.type for r in holders]:
                holders = holders[:1]
            if all(self.occupied[r.id] < capacity.get(r.type, 1) for r in holders):
                break
        while True:
            if holders:
                position, location = _position(holders[0], rng), holders[0].location
            else:
                x, z = rng.choice(plan.points)
                position = (GRID * x + rng.uniform(-0.5, 0.5), 0.0, GRID * z + rng.uniform(-0.5, 0.5))
                location = location_id(x, z, rng.randrange(4), 60)
            name = object_id(kind, position)
            if name not in self.ids:
                return self.add(Thing(id=name, type=kind, receptacles=holders, location=location))


@cache
def fixed_things(number: int) -> tuple[Thing, ...]:
    """Return what never moves (lamps, televisions, chairs). It stands in the same places in every game."""
    plan = floor_plan(number)
    furnisher = Furnisher(plan, random.Random(number))
    for kind, count in placement()["statics"][plan.room].items():
        if kind in plan.object_types and kind not in placement()["copies"]:
            for _ in range(count):
                furnisher.place(kind, *starting_places(number, kind))
    return tuple(furnisher.scene.things)


def _scaled(count: int, factor: float, rng: random.Random) -> int:
    """Return count * factor, rounded up or down at random so that the mean is exact."""
    return int(count * factor + rng.random())


def forbidden_receptacle(goal: Goal) -> str | None:
    """Return the receptacle type that no target may start in, because its task would be done already."""
    if goal.kind in (GoalKind.SIMPLE, GoalKind.TWO):
        return goal.receptacle_type
    return "Fridge" if goal.kind is GoalKind.COOL else None


def target_places(number: int, goal: Goal) -> tuple[tuple[Furniture, ...], tuple[float, ...]]:
    """Return where the target objects of a goal may start, with weights. Both are empty if there is no such place."""
    forbidden = forbidden_receptacle(goal)
    places = zip(*starting_places(number, goal.object_type), strict=True)
    allowed = [(r, w) for r, w in places if r is not None and r.type != forbidden]
    return tuple(r for r, _ in allowed), tuple(w for _, w in allowed)


def furnish(number: int, goal: Goal, rng: random.Random, difficulty: Difficulty) -> Scene:
    """Draw a scene in which the goal is not yet met but, by construction, can be."""
    plan, table = floor_plan(number), placement()
    furnisher = Furnisher(plan, rng)
    for thing in fixed_things(number):
        furnisher.add(thing)
    places, weights = target_places(number, goal)
    odds = difficulty.hidden * table["target_hidden"]
    tuned = tuple(w * (odds if r.openable else 1.0) for r, w in zip(places, weights, strict=True))
    need = 2 if goal.kind is GoalKind.TWO else 1
    copies = rng.choices(range(1, 5), table["target_copies"][goal.kind])[0]
    for _ in range(need + _scaled(copies - need, difficulty.spare_copies, rng)):
        furnisher.place(goal.object_type, places, tuned if any(tuned) else weights, goal.receptacle_type)
    for kind in movable_types(plan):
        if kind != goal.object_type:
            usual = rng.choices(range(1, 5), table["copies"][kind])[0]
            for _ in range(_scaled(usual, difficulty.distractors, rng)):
                furnisher.place(kind, *starting_places(number, kind))
    poses = {r.location for r in plan.receptacles}
    while not furnisher.scene.start or furnisher.scene.start in poses:
        x, z = rng.choice(plan.points)
        furnisher.scene.start = location_id(x, z, rng.randrange(4), 30)
    return furnisher.scene
