"""Reads the 120 floor plans of ALFRED from files that ship inside the `alfworld` wheel.

The wheel's layout files lack some receptacles: stove burners, towel holders, drawers that never open. These fixtures,
and the statistics of real scenes, come from `placement.json`, which scripts/derive_placement.py counts over real
games. Real games never visit 12 of the floor plans. These get the fixtures that their object list names, in the
number that is usual for the room, beside walkable points. The wheel's files are read by path, because importing
`alfworld` imports TextWorld too.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rlanything.domains.alfworld.goals import package_file, package_module

PLACEMENT_FILE = Path(__file__).with_name("placement.json")
SPLITS = ("train", "eval_in_distribution", "eval_out_of_distribution")
CAMERA_HEIGHT = 1.65  # [m]; chosen so that 95 % of the poses equal those of real games
GRID = 0.25  # spacing of ALFRED's navigation grid [m]


@dataclass(frozen=True, kw_only=True)
class Furniture:
    """A receptacle that never moves."""

    id: str
    """The mangled id, as in PDDL."""
    type: str
    """Without the suffix `Type`."""
    position: tuple[float, float, float]
    """x, y (height), z [m]."""
    location: str
    """The PDDL name of the agent's pose at the receptacle."""
    openable: bool


@dataclass(frozen=True, kw_only=True)
class FloorPlan:
    """One scene without its movable objects."""

    number: int
    room: str
    """Kitchen, LivingRoom, Bedroom or Bathroom."""
    receptacles: tuple[Furniture, ...]
    object_types: tuple[str, ...]
    points: tuple[tuple[int, int], ...]
    """The walkable grid points, in units of GRID."""


def mangle(name: str) -> str:
    """Turn an AI2-THOR id into a PDDL name: `Mug|+01.84|...` -> `Mug_bar__plus_01_dot_84_bar_...`."""
    for sign, word in (("|", "_bar_"), ("-", "_minus_"), ("+", "_plus_"), (".", "_dot_")):
        name = name.replace(sign, word)
    return name


def object_id(kind: str, position: tuple[float, float, float]) -> str:
    """Return the mangled id of an object or receptacle of a type at a position [m]."""
    return mangle(kind + "".join(f"|{c:+06.2f}" for c in position))


def location_id(x: int, z: int, turns: int, horizon: int) -> str:
    """Return the PDDL name of a pose of the agent: grid point, quarter turns, camera angle [degrees]."""
    return mangle(f"loc|{x}|{z}|{turns}|{horizon}")


@cache
def placement() -> dict[str, Any]:
    """Return the statistics of real scenes. scripts/derive_placement.py describes each table."""
    table: dict[str, Any] = json.loads(PLACEMENT_FILE.read_text(encoding="utf-8"))
    return table


def floor_plan_numbers(split: str) -> tuple[int, ...]:
    """List the floor plans of a split. `train` and `eval_in_distribution` share theirs.

    Those of `eval_out_of_distribution` are ALFRED's TEST_SCENE_NUMBERS, which training never sees. Raises ValueError
    if there is no such split.
    """
    if split not in SPLITS:
        raise ValueError(f"split: found {split!r}, expected one of {', '.join(SPLITS)}")
    constants, unseen = package_module("constants"), split == "eval_out_of_distribution"
    held_out = frozenset(constants.TEST_SCENE_NUMBERS)
    return tuple(n for numbers in constants.SCENE_TYPE.values() for n in numbers if (n in held_out) == unseen)


def room_of(number: int) -> str:
    """Return the room of a floor plan: Kitchen, LivingRoom, Bedroom or Bathroom. Raises ValueError."""
    for room, numbers in package_module("constants").SCENE_TYPE.items():
        if number in numbers:
            return str(room)
    raise ValueError(f"floor plan: found {number}, expected 1-30, 201-230, 301-330 or 401-430")


def layout_receptacles(number: int) -> dict[str, list[float]]:
    """Read the layout file of a floor plan: receptacle id -> agent's x, z [m], rotation and horizon [degrees]."""
    text = package_file("gen", "layouts", f"FloorPlan{number}-openable.json").read_text(encoding="utf-8")
    layout: dict[str, list[float]] = json.loads(text)
    return layout


def _horizon(position: tuple[float, float, float], x: float, z: float) -> int:
    """Compute ALFRED's camera angle [degrees] from a grid point [m] to a receptacle."""
    distance = max(abs(position[0] - x), abs(position[2] - z))
    angle = math.degrees(math.atan2(CAMERA_HEIGHT - position[1], distance))
    return int(np.clip(15 * round(angle / 15), -30, 60))


def _from_layout(number: int, openable: frozenset[str]) -> list[Furniture]:
    furniture = []
    for name, (x, z, rotation, _) in layout_receptacles(number).items():
        head, *rest = name.split("|")
        kind = rest[3] if len(rest) > 3 else head
        position = (float(rest[0]), float(rest[1]), float(rest[2]))
        pose = location_id(round(x / GRID), round(z / GRID), int(rotation) // 90, _horizon(position, x, z))
        furniture.append(
            Furniture(id=mangle(name), type=kind, position=position, location=pose, openable=kind in openable)
        )
    return furniture


def _known_fixtures(rows: dict[str, list[list[int]]]) -> list[Furniture]:
    furniture = []
    for kind, fixtures in rows.items():
        for x, y, z, *pose in fixtures:
            position = (x / 100, y / 100, z / 100)
            name = object_id(kind, position)
            if kind in ("SinkBasin", "BathtubBasin"):
                name = object_id(kind.removesuffix("Basin"), position) + mangle(f"|{kind}")
            furniture.append(
                Furniture(id=name, type=kind, position=position, location=location_id(*pose), openable=False)
            )
    return furniture


def _usual_fixtures(number: int, missing: list[str], points: tuple[tuple[int, int], ...]) -> list[Furniture]:
    """Invent fixtures for a floor plan that no real game visits: usual number and height, beside walkable points."""
    rng = random.Random(number)
    known = [rows for plan, rows in placement()["fixtures"].items() if room_of(int(plan)) == room_of(number)]
    rows: dict[str, list[list[int]]] = {}
    for kind in missing:
        examples = [rows[kind] for rows in known if kind in rows]
        if examples:
            rows[kind] = []
            for _, y, *_ in rng.choice(examples):
                x, z = rng.choice(points)
                rows[kind].append([25 * x + rng.randrange(30, 60), y, 25 * z, x, z, 1, rng.choice((30, 45, 60))])
    return _known_fixtures(rows)


@cache
def floor_plan(number: int) -> FloorPlan:
    """Read one floor plan. Raises AlfworldMissing, or ValueError if there is no such floor plan."""
    room = room_of(number)
    constants = package_module("constants")
    layouts = package_file("gen", "layouts", f"FloorPlan{number}-layout.npy").parent
    grid = np.unique(np.round(np.load(layouts / f"FloorPlan{number}-layout.npy") / GRID).astype(int), axis=0)
    points = tuple((int(x), int(z)) for x, z in grid)
    types: list[str] = json.loads((layouts / f"FloorPlan{number}-objects.json").read_text(encoding="utf-8"))
    receptacles = _from_layout(number, frozenset(constants.OPENABLE_CLASS_LIST))
    fixed = sorted(constants.RECEPTACLES - constants.MOVABLE_RECEPTACLES_SET)
    rows = placement()["fixtures"].get(str(number))
    if rows is not None:
        receptacles += _known_fixtures(rows)
    else:
        have = {r.type for r in receptacles}
        receptacles += _usual_fixtures(number, [t for t in fixed if t in types and t not in have], points)
    objects = tuple(sorted(t for t in types if t in constants.OBJECTS_SET and t not in fixed))
    return FloorPlan(
        number=number,
        room=room,
        receptacles=tuple(sorted(receptacles, key=lambda r: r.id)),
        object_types=objects,
        points=points,
    )
