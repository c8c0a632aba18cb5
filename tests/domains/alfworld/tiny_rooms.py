"""Makes rooms that are small enough for an exhaustive search, in the form of a game.tw-pddl."""

from __future__ import annotations

import random
from typing import Any

from rlanything.domains.alfworld.game import Game, Goal, GoalKind, parse_game
from rlanything.domains.alfworld.simulator import Episode

GRAMMAR = (
    'grammar :: """{"task": [{"rhs": "Your task is to: %s"}]}""";\n'
    'action PutObject { template :: "move {o} to {r}"; }\n'
    'action help { feedback :: "\nAvailable commands:\n  look: ...\n"; }'
)
DOMAIN = "(define (domain alfred)\n  (or\n    (receptacleType ?r SinkType)\n    (receptacleType ?r SinkBasinType)\n  ))"
OPENABLE = {"Drawer", "Fridge", "Microwave"}
TREATABLE = {"Mug", "Apple"}
LAMP = "DeskLamp"


def goal_text(goal: Goal) -> str:
    """Write the PDDL of a goal in ALFWorld's form."""
    kind, thing = goal.kind, f"{goal.object_type}Type"
    if kind is GoalKind.LOOK:
        return (
            "(exists (?ot - object ?r - receptacle ?a - agent ?l - location) "
            f"(and (objectType ?ot {goal.lamp_type}Type) (toggleable ?ot) (isToggled ?ot) "
            "(receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))"
            f"(exists (?o - object ?a - agent) (and (objectType ?o {thing}) (holds ?a ?o)))"
        )
    place = f"(receptacleType ?r {goal.receptacle_type}Type)"
    if kind is GoalKind.TWO:
        second = (
            f"(exists (?o2 - object) (and (not (= ?o1 ?o2)) (objectType ?o2 {thing}) {place} (inReceptacle ?o2 ?r)))"
        )
        first = f"(objectType ?o1 {thing}) {place} (inReceptacle ?o1 ?r) {second}"
        return f"(exists (?r - receptacle) (exists (?o1 - object) (and {first})))"
    able, state = {
        GoalKind.SIMPLE: ("", ""),
        GoalKind.CLEAN: ("(cleanable ?o)", "(isClean ?o)"),
        GoalKind.HEAT: ("(heatable ?o)", "(isHot ?o)"),
        GoalKind.COOL: ("(coolable ?o)", "(isCool ?o)"),
    }[kind]
    return (
        f"(exists (?r - receptacle) (exists (?o - object) "
        f"(and {able} (objectType ?o {thing}) {place} {state} (inReceptacle ?o ?r))))"
    )


def room(
    goal: Goal,
    receptacles: dict[str, str],
    objects: dict[str, list[str]],
    extra: tuple[str, ...] = (),
    refuses: tuple[tuple[str, str], ...] = (),
) -> dict[str, Any]:
    """Make a game. `receptacles`: id "Drawer1" -> location; `objects`: id "Mug1" -> the receptacles that it is in.

    Every receptacle takes every object, except for the (receptacle type, object type) pairs in `refuses`. `extra`
    are further facts.
    """
    facts = ["atLocation agent1 loc_start", *extra]
    types = {r: r.rstrip("0123456789") for r in receptacles}
    for r, where in receptacles.items():
        facts += [f"receptacleType {_id(r)} {types[r]}Type", f"receptacleAtLocation {_id(r)} {where}"]
        facts += [f"openable {_id(r)}"] if types[r] in OPENABLE else []
    for o, places in objects.items():
        kind = o.rstrip("0123456789")
        facts += [f"objectType {_id(o)} {kind}Type", f"pickupable {_id(o)}"]
        facts += [f"inReceptacle {_id(o)} {_id(r)}" for r in places]
        facts += [f"objectAtLocation {_id(o)} {receptacles[places[0]]}"] if places else []
        if kind in TREATABLE:
            facts += [f"{able} {_id(o)}" for able in ("cleanable", "heatable", "coolable")]
        facts += [f"toggleable {_id(o)}"] if kind == LAMP else []
        facts += [f"sliceable {_id(o)}"] if kind == "Apple" else []
        accepting = sorted({t for t in types.values() if (t, kind) not in refuses})
        facts += [f"canContain {t}Type {kind}Type" for t in accepting]
    init = "\n".join(f"({fact})" for fact in facts)
    return {
        "pddl_domain": DOMAIN,
        "grammar": GRAMMAR % "do what must be done.",
        "pddl_problem": f"(define (problem p)\n(:init\n{init}\n)\n(:goal (and {goal_text(goal)})))",
        "walkthrough": [],
    }


def _id(name: str) -> str:
    """Return ALFRED's form of an id: Mug_bar_1 for "Mug1", Sink_bar_1_bar_SinkBasin for "SinkBasin1"."""
    kind = name.rstrip("0123456789")
    number = name.removeprefix(kind)
    return f"{kind.removesuffix('Basin')}_bar_{number}" + (f"_bar_{kind}" if kind.endswith("Basin") else "")


def random_room(rng: random.Random) -> Game:
    """Make a room of five receptacles at up to four locations, three objects, and any of the six goals."""
    kind = rng.choice(list(GoalKind))
    look = kind is GoalKind.LOOK
    station = {GoalKind.CLEAN: "SinkBasin1", GoalKind.HEAT: "Microwave1"}.get(kind, "Desk2")
    names = ["Desk1", station, "Fridge1", "Drawer1", "Drawer2"]
    receptacles = {name: f"loc_{rng.randrange(4)}" for name in names}
    kinds = ["Mug1", "Mug2", LAMP + "1" if look else "Apple1"]
    objects = {o: rng.sample(names, 1 + (rng.random() < 0.2)) for o in kinds}
    target = rng.choice(["Desk", "Drawer", "Fridge"])
    goal = Goal(kind, "Mug", None, LAMP) if look else Goal(kind, "Mug", target)
    pairs = [(r, o) for r in ("Desk", "SinkBasin", "Microwave", "Fridge", "Drawer") for o in ("Mug", "Apple", LAMP)]
    refuses = tuple(pair for pair in pairs if rng.random() < 0.4)
    return parse_game(room(goal, receptacles, objects, refuses=refuses), "a random room")


def shortest(episode: Episode) -> int | None:
    """Find the length of the shortest win by breadth-first search, over the commands that can matter to the goal."""
    idle = ("look", "help", "inventory", "examine", "slice", "close", *_other_treatments(episode.game.goal.kind))
    layer, seen, depth = [episode.clone()], {_key(episode)}, 0
    while layer:
        following = []
        for here in layer:
            if here.won:
                return depth
            for command in here.admissible:
                if command.startswith(idle):
                    continue
                after = here.clone()
                after.step(command)
                key = _key(after)
                if key not in seen:
                    seen.add(key)
                    following.append(after)
        layer, depth = following, depth + 1
    return None


def _other_treatments(kind: GoalKind) -> list[str]:
    # A goal depends on one treatment. Heating and cooling undo each other, which never shortens a plan.
    used = {GoalKind.CLEAN: "clean", GoalKind.HEAT: "heat", GoalKind.COOL: "cool"}.get(kind)
    return [verb for verb in ("clean", "heat", "cool") if verb != used]


def _key(episode: Episode) -> tuple[object, ...]:
    s = episode.state
    return (s.location, s.held, tuple(s.contents), s.opened, s.hot, s.cool, s.clean, s.toggled)
