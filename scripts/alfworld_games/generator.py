"""Generates ALFWorld games: a floor plan, a goal that real games ask for, a plausible scene, and a plan that wins.

`canContain` lists exactly the types that a scene holds, while real games list a few more or fewer.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

from alfworld_games.floorplans import FloorPlan, floor_plan, floor_plan_numbers, placement
from alfworld_games.scenes import Difficulty, Scene, fixed_things, furnish, movable_types, target_places
from rlanything.domains.alfworld.game import parse_game
from rlanything.domains.alfworld.goals import goal_pddl, package_file, package_module, pddl_params, write_sentence
from rlanything.domains.alfworld.library import PackedGame
from rlanything.domains.alfworld.model import Goal, GoalKind
from rlanything.domains.alfworld.planner import plan
from rlanything.domains.alfworld.rules import TREATMENTS
from rlanything.domains.alfworld.simulator import Episode
from rlanything.errors import ClearError

UNSEEN_GOAL = 0.1  # weight of a possible goal that no real game asks for; the goals of real games weigh 1 or more
NUM_TRY = 50  # scenes tried for one game

GameKey = tuple[int, Goal, frozenset[tuple[str, ...]]]
"""Floor plan, goal, and where the target objects start. Two games with the same key are the same task."""


class GenerationError(ClearError, RuntimeError):
    """No further game of a kind can be made. The message says which kind and what to change."""


@cache
def template() -> dict[str, str]:
    """Return `pddl_domain` and `grammar` of every game. The grammar has `{task}` in place of the task sentence."""
    grammar = package_file("data", "alfred.twl2").read_text(encoding="utf-8")
    return {
        "pddl_domain": package_file("data", "alfred.pddl").read_text(encoding="utf-8"),
        "grammar": grammar.replace("UNKNOWN GOAL.", "{task}"),
    }


def task_folder(goal: Goal, number: int) -> str:
    """Name the folder that holds the trials of a goal in floor plan `number`, as in json_2.1.1."""
    return f"{goal.kind}-{goal.object_type}-None-{goal.receptacle_type or goal.lamp_type}-{number}"


@cache
def possible_goals(number: int, kind: GoalKind) -> dict[Goal, float]:
    """Return every goal of a kind that a floor plan allows, with its weight: how many real games ask for it."""
    plan_, constants, treatment = floor_plan(number), package_module("constants"), TREATMENTS.get(kind)
    types = {r.type for r in plan_.receptacles}
    if plan_.room not in constants.GOALS_VALID[kind] or (treatment and treatment.appliance not in types):
        return {}
    weights = placement()["goals"][kind]
    goals: dict[Goal, float] = {}
    for thing in movable_types(plan_):
        if treatment and thing not in _able(treatment.ability):
            continue
        if kind is GoalKind.LOOK:
            lamps = {t.type for t in fixed_things(number) if t.type.endswith("Lamp") and t.receptacles}
            candidates = [Goal(kind, thing, None, lamp) for lamp in sorted(lamps)]
        else:
            accepting = [t for t in sorted(types) if thing in constants.VAL_RECEPTACLE_OBJECTS.get(t, ())]
            candidates = [Goal(kind, thing, t, None) for t in accepting]
        for goal in candidates:
            if target_places(number, goal)[0]:
                weight = weights.get(thing, {}).get(goal.receptacle_type or goal.lamp_type, 0)
                goals[goal] = weight or UNSEEN_GOAL
    return goals


def _able(ability: str) -> set[str]:
    """Return the object types that have an ability, such as "cleanable"."""
    types: set[str] = package_module("constants").VAL_ACTION_OBJECTS[ability.capitalize()]
    return types


def problem_text(scene: Scene, goal: Goal, trial: str) -> str:
    """Write the PDDL problem, in the layout of real games."""
    constants, receptacles, things = package_module("constants"), scene.plan.receptacles, scene.things
    object_types, receptacle_types = sorted({t.type for t in things}), sorted({r.type for r in receptacles})
    accepts = constants.VAL_RECEPTACLE_OBJECTS
    movable = set(movable_types(scene.plan))
    poses = sorted({r.location for r in receptacles} | {t.location for t in things} | {scene.start})
    declared = ["agent1 - agent"]
    declared += [f"{t}Type - otype" for t in object_types] + [f"{t}Type - rtype" for t in receptacle_types]
    declared += [f"{t.id} - object" for t in sorted(things, key=lambda t: t.id)]
    declared += [f"{r.id} - receptacle" for r in receptacles] + [f"{p} - location" for p in poses]
    facts = [f"receptacleType {r.id} {r.type}Type" for r in receptacles]
    facts += [f"objectType {t.id} {t.type}Type" for t in things]
    facts += [f"canContain {r}Type {o}Type" for r in receptacle_types for o in object_types if o in accepts.get(r, ())]
    facts += [f"pickupable {t.id}" for t in things if t.type in movable]
    facts += [f"isReceptacleObject {t.id}" for t in things if t.type in constants.MOVABLE_RECEPTACLES_SET]
    facts += [f"openable {r.id}" for r in receptacles if r.openable] + [f"atLocation agent1 {scene.start}"]
    for ability in ("cleanable", "heatable", "coolable", "sliceable"):
        facts += [f"{ability} {t.id}" for t in things if t.type in _able(ability)]
    # In real games, targets that start in the fridge are cold, but other objects there are not.
    cold = [t for t in scene.of_type(goal.object_type) if any(r.type == "Fridge" for r in t.receptacles)]
    facts += [f"isCool {t.id}" for t in cold]
    facts += [f"toggleable {t.id}" for t in things if t.type in _able("toggleable")]
    facts += [f"inReceptacle {t.id} {r.id}" for t in things for r in t.receptacles]
    facts += [f"receptacleAtLocation {r.id} {r.location}" for r in receptacles]
    facts += [f"objectAtLocation {t.id} {t.location}" for t in things]
    objects = "\n        ".join(declared)
    init = "\n        ".join(f"({fact})" for fact in facts)
    head = f"\n(define (problem plan_{trial})\n(:domain alfred)\n(:objects\n        {objects}\n        )\n"
    return f"{head}\n(:init\n        {init}\n        )\n\n        {goal_pddl(goal)}\n"


def traj_data(goal: Goal, plan_: FloorPlan, trial: str, sentence: str) -> dict[str, Any]:
    """Return the part of traj_data.json that ALFWorld reads. The sentence stands in for people's annotations."""
    return {
        "task_id": trial,
        "task_type": str(goal.kind),
        "pddl_params": pddl_params(goal),
        "scene": {"floor_plan": f"FloorPlan{plan_.number}", "scene_num": plan_.number},
        "turk_annotations": {"anns": [{"task_desc": sentence}]},
    }


def compose(
    kind: GoalKind, number: int, split: str, rng: random.Random, difficulty: Difficulty
) -> tuple[PackedGame, GameKey] | None:
    """Try to make a game in a floor plan. Returns None if the drawn scene is won already or cannot be won."""
    goals = possible_goals(number, kind)
    goal = rng.choices(list(goals), [w**difficulty.goal_exponent for w in goals.values()])[0]
    scene = furnish(number, goal, rng, difficulty)
    trial = f"trial_G{rng.getrandbits(64):016x}"
    sentence = write_sentence(goal, rng.randrange(2))
    data: dict[str, Any] = {
        "pddl_domain": template()["pddl_domain"],
        "grammar": template()["grammar"].replace("{task}", sentence),
        "pddl_problem": problem_text(scene, goal, trial),
    }
    path = f"{split}/{task_folder(goal, number)}/{trial}"
    walkthrough = plan(Episode(parse_game(data, path)))
    if not walkthrough:
        return None
    data |= {"walkthrough": walkthrough, "solvable": True}
    targets = frozenset(tuple(r.id for r in t.receptacles) for t in scene.of_type(goal.object_type))
    traj = traj_data(goal, scene.plan, trial, sentence)
    return PackedGame(path=path, data=data, traj=traj, annotations=(sentence,)), (number, goal, targets)


def generate_games(
    split: str,
    count: int,
    seed: int,
    difficulty: Difficulty | None = None,
    taken: set[GameKey] | None = None,
) -> Iterator[PackedGame]:
    """Generate `count` different games that can be won: task types in turn, each over all floor plans that allow it.

    The same arguments yield the same games. `taken` holds the tasks not to make again, and gains those that are made.
    Splits that share floor plans should share it. Raises GenerationError if a split has no further game, and
    AlfworldMissing.
    """
    taken = set() if taken is None else taken
    rng = random.Random(f"{seed} {split}")
    kinds = list(GoalKind)
    numbers = {kind: [n for n in floor_plan_numbers(split) if possible_goals(n, kind)] for kind in kinds}
    used: Counter[tuple[GoalKind, int]] = Counter()
    for index in range(count):
        kind = kinds[index % len(kinds)]
        for _ in range(NUM_TRY):
            number = min(numbers[kind], key=lambda n: (used[kind, n], rng.random()))
            used[kind, number] += 1  # failed attempts count too, so a floor plan without further games blocks nothing
            made = compose(kind, number, split, rng, difficulty or Difficulty())
            if made is not None and made[1] not in taken:
                taken.add(made[1])
                yield made[0]
                break
        else:
            raise GenerationError(
                f"{split}: no further {kind} game in {NUM_TRY} scenes, after {index} games; ask for fewer games or "
                "another difficulty"
            )
