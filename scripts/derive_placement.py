"""Derive the generator's placement table from packed real ALFWorld games.

    python scripts/derive_placement.py train.jsonl.xz

Counts, over all games of the file: where objects of each type stand (per room, per receptacle that could hold
them), how many copies a scene holds, which goals are asked for, how full each receptacle type gets, and which
receptacles a floor plan has besides those in alfworld's own layout files. Nothing of a single game is kept.
Writes scripts/alfworld_games/placement.json.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from alfworld_games.floorplans import PLACEMENT_FILE, layout_receptacles, mangle, room_of

MIN_COUNT = 10  # rarer overlaps of two receptacles are physics noise of single games
FACT = re.compile(r"\(([^()]+)\)")


def unmangle(name: str) -> str:
    """`Mug_bar__plus_01_dot_84` -> `Mug|+01.84`."""
    for word, sign in (("_bar_", "|"), ("_minus_", "-"), ("_plus_", "+"), ("_dot_", ".")):
        name = name.replace(word, sign)
    return name


def coordinates(name: str) -> tuple[float, float, float]:
    """Position [m] that an object's id states."""
    x, y, z = (float(part) for part in unmangle(name).split("|")[1:4])
    return x, y, z


class Scene:
    """One game's initial state."""

    def __init__(self, record: dict[str, Any]) -> None:
        problem: str = record["problem"]
        facts = [f.split() for f in FACT.findall(problem[problem.index("(:init") : problem.index("(:goal")])]
        self.plan = int(record["path"].split("/")[1].rsplit("-", 1)[1])
        self.room = room_of(self.plan)
        self.kind: str = record["traj"]["task_type"]
        self.params: dict[str, str] = record["traj"]["pddl_params"]
        self.receptacles = {f[1]: f[2][:-4] for f in facts if f[0] == "receptacleType"}
        self.locations = {f[1]: f[2] for f in facts if f[0] == "receptacleAtLocation"}
        self.objects = {f[1]: f[2][:-4] for f in facts if f[0] == "objectType"}
        self.openable = {f[1] for f in facts if f[0] == "openable"}
        self.pickupable = {f[1] for f in facts if f[0] == "pickupable"}
        self.inside: dict[str, list[str]] = defaultdict(list)
        for f in facts:
            if f[0] == "inReceptacle":
                self.inside[f[1]].append(f[2])


def places(scenes: list[Scene]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return rates and overlaps.

    Rates: room -> object -> receptacle type -> placements per such receptacle. Overlaps: object -> receptacle type ->
    second receptacle type -> probability.
    """
    total = Counter(s.receptacles[r] for s in scenes for rs in s.inside.values() for r in rs if r in s.receptacles)
    hits: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    chances: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    overlaps: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for s in scenes:
        available = Counter(s.receptacles.values())
        available["floor"] = 1
        for name, kind in s.objects.items():
            types = sorted((s.receptacles[r] for r in s.inside[name] if r in s.receptacles), key=lambda t: total[t])
            chances[s.room, kind].update(available)
            hits[s.room, kind][types[0] if types else "floor"] += 1
            if types:
                overlaps[kind, types[0]][types[1] if len(types) > 1 else ""] += 1
    rates: dict[str, Any] = defaultdict(dict)
    for (room, kind), counter in sorted(hits.items()):
        rates[room][kind] = {t: round(n / chances[room, kind][t], 4) for t, n in sorted(counter.items()) if n > 1}
    also: dict[str, Any] = defaultdict(dict)
    for (kind, first), counter in sorted(overlaps.items()):
        common = {t: round(n / counter.total(), 3) for t, n in sorted(counter.items()) if t and n >= MIN_COUNT}
        if common:
            also[kind][first] = common
    return rates, also


def target_hidden(scenes: list[Scene], rates: dict[str, Any]) -> float:
    """Odds that a target starts in a closed container, relative to where objects of its type stand in general.

    They are below 1: ALFRED kept the trajectories that its robot could carry out, and these open fewer containers.
    """
    hidden, expected, total = 0, 0.0, 0
    for s in scenes:
        kind = s.params["object_target"]
        weights = {r: rates[s.room][kind].get(t, 0.0) for r, t in s.receptacles.items()}
        share = sum(w for r, w in weights.items() if r in s.openable) / (sum(weights.values()) or 1.0)
        for name in (n for n, k in s.objects.items() if k == kind):
            hidden += any(r in s.openable for r in s.inside[name])
            expected += share
            total += 1
    return round(hidden / (total - hidden) * (total - expected) / expected, 3)


def fixtures(scenes: list[Scene]) -> dict[str, Any]:
    """Floor plan -> receptacle type -> [x, y, z in cm, location x, z in 25 cm, quarter turns, horizon]."""
    found: dict[str, Any] = {}
    for s in {s.plan: s for s in scenes}.values():
        known = {mangle(name) for name in layout_receptacles(s.plan)}
        plan: dict[str, Any] = defaultdict(list)
        for name in sorted(set(s.receptacles) - known):
            location = [int(n) for n in unmangle(s.locations[name]).split("|")[1:]]
            plan[s.receptacles[name]].append([round(100 * c) for c in coordinates(name)] + location)
        found[str(s.plan)] = plan
    return dict(sorted(found.items(), key=lambda item: int(item[0])))


def copies(scenes: list[Scene]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Count scenes with 1, 2, 3 or 4 objects of a movable type: bystanders by type, targets by task type."""
    bystander: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    target: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for s in scenes:
        for kind, n in Counter(k for name, k in s.objects.items() if name in s.pickupable).items():
            table = target[s.kind] if kind == s.params["object_target"] else bystander[kind]
            table[min(n, 4) - 1] += 1
    return dict(sorted(bystander.items())), dict(sorted(target.items()))


def statics(scenes: list[Scene]) -> dict[str, Any]:
    """Room -> immovable object type -> their mean number, over the floor plans that have any."""
    seen: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for s in {s.plan: s for s in scenes}.values():
        for kind, n in Counter(k for name, k in s.objects.items() if name not in s.pickupable).items():
            seen[s.room][kind].append(n)
    return {room: {k: round(statistics.mean(n)) for k, n in sorted(t.items())} for room, t in sorted(seen.items())}


def goals(scenes: list[Scene]) -> dict[str, Any]:
    """Task type -> object type -> receptacle (or lamp) type -> number of distinct games."""
    table: dict[str, Any] = defaultdict(lambda: defaultdict(Counter))
    for s in scenes:
        table[s.kind][s.params["object_target"]][s.params["parent_target"] or s.params["toggle_target"]] += 1
    return {k: {o: dict(sorted(c.items())) for o, c in sorted(t.items())} for k, t in sorted(table.items())}


def extents(scenes: list[Scene]) -> tuple[dict[str, int], dict[str, list[float]]]:
    """Return capacity and shape of each receptacle type.

    Capacity: the 99th percentile of its number of objects. Shape: [spread of its objects in x and z, their height above
    the receptacle, their height above the floor, in metres; 1 if the latter varies less].
    """
    occupancy: dict[str, list[int]] = defaultdict(list)
    offsets: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for s in scenes:
        used = Counter(r for rs in s.inside.values() for r in rs)
        for name, kind in s.receptacles.items():
            occupancy[kind].append(used[name])
        for name, holders in s.inside.items():
            x, y, z = coordinates(name)
            for holder in holders:
                if holder in s.receptacles:
                    hx, hy, hz = coordinates(holder)
                    offsets[s.receptacles[holder]].append((max(abs(x - hx), abs(z - hz)), y - hy, y))
    capacity = {k: max(1, sorted(n)[int(0.99 * (len(n) - 1))]) for k, n in sorted(occupancy.items())}
    shape = {}
    for kind, rows in sorted(offsets.items()):
        spread, above, height = (list(column) for column in zip(*rows, strict=True))
        absolute = int(statistics.pstdev(height) < statistics.pstdev(above))
        shape[kind] = [round(statistics.median(c), 2) for c in (spread, above, height)] + [absolute]
    return capacity, shape


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("packed", nargs="+", type=Path, help="packed real games, .jsonl.xz")
    parser.add_argument("--out", type=Path, default=PLACEMENT_FILE)
    args = parser.parse_args()
    scenes = []
    for path in args.packed:
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            scenes += [Scene(json.loads(line)) for line in lines]
    rates, also = places(scenes)
    bystander, target = copies(scenes)
    capacity, shape = extents(scenes)
    table = {
        "source": f"statistics of {len(scenes)} real ALFWorld games (MIT licence), by scripts/derive_placement.py",
        "places": rates,
        "also": also,
        "copies": bystander,
        "target_copies": target,
        "target_hidden": target_hidden(scenes, rates),
        "statics": statics(scenes),
        "goals": goals(scenes),
        "capacity": capacity,
        "shape": shape,
        "fixtures": fixtures(scenes),
    }
    rows = ",\n".join(f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in table.items())
    args.out.write_text("{" + rows + "}\n", encoding="utf-8")
    print(f"{args.out}: {args.out.stat().st_size} bytes from {len(scenes)} games")


if __name__ == "__main__":
    main()
