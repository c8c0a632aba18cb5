"""The 120 floor plans of ALFRED: what each holds, from files that ship inside the `alfworld` wheel.

Receptacles that alfworld's layout files leave out (stove burners, towel holders, drawers that never open) and the
statistics of real scenes come from `placement.json`, which scripts/derive_placement.py counts over real games.
The 12 floor plans that those games never visit get such fixtures where their object list names them, in the
number that is usual for the room, beside walkable points. The wheel's files are read by path: importing
`alfworld` itself would pull in TextWorld.
"""

from __future__ import annotations

import importlib.util
import json
import math
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from rlanything.errors import ClearError

PLACEMENT_FILE = Path(__file__).with_name("placement.json")
SPLITS = ("train", "eval_in_distribution", "eval_out_of_distribution")
ROOMS = {
    "Kitchen": range(1, 31),
    "LivingRoom": range(201, 231),
    "Bedroom": range(301, 331),
    "Bathroom": range(401, 431),
}
CAMERA_HEIGHT = 1.65  # [m]; with it 95 % of the poses equal those of real games
GRID = 0.25  # ALFRED's navigation grid [m]


class AlfworldMissing(ClearError, RuntimeError):
    """The alfworld package, or a file of it, is not there."""


@dataclass(frozen=True)
class Furniture:
    """A receptacle that never moves: mangled PDDL id, type without the suffix `Type`, position [m], PDDL location."""

    id: str
    type: str
    position: tuple[float, float, float]
    location: str
    openable: bool


@dataclass(frozen=True)
class FloorPlan:
    """One scene without its movable objects. `points` are the walkable grid points in units of 0.25 m."""

    number: int
    room: str
    receptacles: tuple[Furniture, ...]
    object_types: tuple[str, ...]
    points: tuple[tuple[int, int], ...]


def mangle(name: str) -> str:
    """An AI2-THOR id as a PDDL name: `Mug|+01.84|...` -> `Mug_bar__plus_01_dot_84_bar_...`."""
    for sign, word in (("|", "_bar_"), ("-", "_minus_"), ("+", "_plus_"), (".", "_dot_")):
        name = name.replace(sign, word)
    return name


def object_id(kind: str, position: tuple[float, float, float]) -> str:
    """The mangled id of an object or receptacle of a type at a position [m]."""
    return mangle(kind + "".join(f"|{c:+06.2f}" for c in position))


def location_id(x: int, z: int, turns: int, horizon: int) -> str:
    """The PDDL name of an agent pose: grid point, quarter turns, camera angle [degrees]."""
    return mangle(f"loc|{x}|{z}|{turns}|{horizon}")


@cache
def package_folder() -> Path:
    """Folder of the installed alfworld package, found without importing it. Raises AlfworldMissing."""
    spec = importlib.util.find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        raise AlfworldMissing(
            "the Python package alfworld is not installed; its floor plans are needed to generate games: "
            "run `pip install --no-deps alfworld==0.4.2`"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def package_file(*parts: str) -> Path:
    """A file of the alfworld package. Raises AlfworldMissing naming it."""
    path = package_folder().joinpath(*parts)
    if not path.is_file():
        raise AlfworldMissing(f"alfworld has no file {path}; expected alfworld==0.4.2: reinstall it")
    return path


@cache
def package_module(name: str) -> ModuleType:
    """`constants` or `goal_library` of alfworld.gen, loaded alone."""
    spec = importlib.util.spec_from_file_location(f"_alfworld_{name}", package_file("gen", f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def template() -> dict[str, str]:
    """`pddl_domain` and `grammar` of every game; the grammar has `{task}` where the task sentence goes."""
    grammar = package_file("data", "alfred.twl2").read_text(encoding="utf-8")
    return {
        "pddl_domain": package_file("data", "alfred.pddl").read_text(encoding="utf-8"),
        "grammar": grammar.replace("UNKNOWN GOAL.", "{task}"),
    }


@cache
def placement() -> dict[str, Any]:
    """The statistics of real scenes; scripts/derive_placement.py describes each table."""
    table: dict[str, Any] = json.loads(PLACEMENT_FILE.read_text(encoding="utf-8"))
    return table


def held_out() -> frozenset[int]:
    """Floor plans that training never sees: ALFRED's TEST_SCENE_NUMBERS."""
    return frozenset(package_module("constants").TEST_SCENE_NUMBERS)


def floor_plan_numbers(split: str) -> tuple[int, ...]:
    """The floor plans of a split; `train` and `eval_in_distribution` share theirs."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: expected one of {', '.join(SPLITS)}")
    unseen = split == "eval_out_of_distribution"
    return tuple(n for numbers in ROOMS.values() for n in numbers if (n in held_out()) == unseen)


def room_of(number: int) -> str:
    """Kitchen, LivingRoom, Bedroom or Bathroom."""
    for room, numbers in ROOMS.items():
        if number in numbers:
            return room
    raise ValueError(f"no floor plan {number}: expected 1-30, 201-230, 301-330 or 401-430")


def layout_receptacles(number: int) -> dict[str, list[float]]:
    """The layout file of a floor plan: receptacle id -> agent's x, z [m], rotation and horizon [degrees]."""
    text = package_file("gen", "layouts", f"FloorPlan{number}-openable.json").read_text(encoding="utf-8")
    layout: dict[str, list[float]] = json.loads(text)
    return layout


def _horizon(position: tuple[float, float, float], x: float, z: float) -> int:
    """ALFRED's camera angle [degrees] from a grid point [m] to a receptacle."""
    distance = max(abs(position[0] - x), abs(position[2] - z))
    angle = math.degrees(math.atan2(CAMERA_HEIGHT - position[1], distance))
    return int(np.clip(15 * round(angle / 15), -30, 60))


def _from_layout(number: int, openable: frozenset[str]) -> list[Furniture]:
    found = []
    for name, (x, z, rotation, _) in layout_receptacles(number).items():
        head, *rest = name.split("|")
        kind = rest[3] if len(rest) > 3 else head
        position = (float(rest[0]), float(rest[1]), float(rest[2]))
        pose = location_id(round(x / GRID), round(z / GRID), int(rotation) // 90, _horizon(position, x, z))
        found.append(Furniture(mangle(name), kind, position, pose, kind in openable))
    return found


def _known_fixtures(rows: dict[str, list[list[int]]]) -> list[Furniture]:
    found = []
    for kind, fixtures in rows.items():
        for x, y, z, *pose in fixtures:
            position = (x / 100, y / 100, z / 100)
            name = object_id(kind, position)
            if kind in ("SinkBasin", "BathtubBasin"):
                name = object_id(kind.removesuffix("Basin"), position) + mangle(f"|{kind}")
            found.append(Furniture(name, kind, position, location_id(*pose), False))
    return found


def _usual_fixtures(number: int, missing: list[str], points: tuple[tuple[int, int], ...]) -> list[Furniture]:
    """Fixtures of a floor plan that no real game visits: usual number and height, beside a walkable point."""
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
    """Read one floor plan. Raises AlfworldMissing, ValueError for a number that is none."""
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
    return FloorPlan(number, room, tuple(sorted(receptacles, key=lambda r: r.id)), objects, points)
