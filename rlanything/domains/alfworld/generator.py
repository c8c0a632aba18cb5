"""New ALFWorld games: a floor plan, a goal as real games ask for it, a plausible scene, and a plan that proves it.

`generate_games` is what to use: balanced over task types and floor plans, free of duplicates, repeatable.
Simplification: `canContain` lists the types that a scene holds, where real games list a few more or fewer.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

from rlanything.domains.alfworld.floorplans import (
    FloorPlan,
    floor_plan,
    floor_plan_numbers,
    package_module,
    placement,
    template,
)
from rlanything.domains.alfworld.game import PackedGame, parse_game
from rlanything.domains.alfworld.goals import goal_pddl, pddl_params, task_folder
from rlanything.domains.alfworld.model import Goal, GoalKind
from rlanything.domains.alfworld.planner import plan
from rlanything.domains.alfworld.scenes import Difficulty, Scene, fixed_things, furnish, movable_types, target_options
from rlanything.domains.alfworld.sentences import write_sentence
from rlanything.domains.alfworld.simulator import Episode
from rlanything.errors import ClearError

UNSEEN_GOAL = 0.1  # weight of a goal that is possible but that no real game asks for (a real one weighs 1 or more)
NUM_TRY = 50  # scenes tried for one game
PROPERTIES = {"cleanable": "Cleanable", "heatable": "Heatable", "coolable": "Coolable", "sliceable": "Sliceable"}
TREATMENT = {GoalKind.CLEAN: "Cleanable", GoalKind.HEAT: "Heatable", GoalKind.COOL: "Coolable"}
APPLIANCE = {GoalKind.CLEAN: "SinkBasin", GoalKind.HEAT: "Microwave", GoalKind.COOL: "Fridge"}

GameKey = tuple[int, Goal, frozenset[tuple[str, ...]]]
"""What makes two games the same task: floor plan, goal, and where the target objects start."""


class GenerationError(ClearError, RuntimeError):
    """No such game can be made: the message says which and what to change."""


@cache
def possible_goals(number: int, kind: GoalKind) -> dict[Goal, float]:
    """Every goal of a kind that a floor plan allows, with its weight: how many real games ask for it."""
    plan_, constants = floor_plan(number), package_module("constants")
    if plan_.room not in constants.GOALS_VALID[kind]:
        return {}
    types = {r.type for r in plan_.receptacles}
    if kind in APPLIANCE and APPLIANCE[kind] not in types:
        return {}
    asked = placement()["goals"][kind]
    goals: dict[Goal, float] = {}
    for thing in movable_types(plan_):
        if kind in TREATMENT and thing not in constants.VAL_ACTION_OBJECTS[TREATMENT[kind]]:
            continue
        if kind is GoalKind.LOOK:
            lamps = {t.type for t in fixed_things(number) if t.type.endswith("Lamp") and t.receptacles}
            found = [Goal(kind, thing, None, lamp) for lamp in sorted(lamps)]
        else:
            accepting = [t for t in sorted(types) if thing in constants.VAL_RECEPTACLE_OBJECTS.get(t, ())]
            found = [Goal(kind, thing, t, None) for t in accepting]
        for goal in found:
            if target_options(number, goal)[0]:
                usual = asked.get(thing, {}).get(goal.receptacle_type or goal.lamp_type, 0)
                goals[goal] = usual or UNSEEN_GOAL
    return goals


def problem_text(scene: Scene, goal: Goal, trial: str) -> str:
    """The PDDL problem, in the layout of real games."""
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
    for name, action in PROPERTIES.items():
        facts += [f"{name} {t.id}" for t in things if t.type in constants.VAL_ACTION_OBJECTS[action]]
    # Targets that start in the fridge are cold, other objects there are not: so the real games have it.
    cold = [t for t in scene.of_type(goal.object_type) if any(r.type == "Fridge" for r in t.receptacles)]
    facts += [f"isCool {t.id}" for t in cold]
    facts += [f"toggleable {t.id}" for t in things if t.type in constants.VAL_ACTION_OBJECTS["Toggleable"]]
    facts += [f"inReceptacle {t.id} {r.id}" for t in things for r in t.receptacles]
    facts += [f"receptacleAtLocation {r.id} {r.location}" for r in receptacles]
    facts += [f"objectAtLocation {t.id} {t.location}" for t in things]
    objects = "\n        ".join(declared)
    init = "\n        ".join(f"({fact})" for fact in facts)
    head = f"\n(define (problem plan_{trial})\n(:domain alfred)\n(:objects\n        {objects}\n        )\n"
    return f"{head}\n(:init\n        {init}\n        )\n\n        {goal_pddl(goal)}\n"


def traj_data(goal: Goal, plan_: FloorPlan, trial: str, sentence: str) -> dict[str, Any]:
    """The part of traj_data.json that ALFWorld reads. Its annotation repeats the sentence: nobody wrote one."""
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
    """One attempt at a game in a floor plan; None where the scene drawn is already won or cannot be."""
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
    game = PackedGame(path, data, traj_data(goal, scene.plan, trial, sentence), (sentence,))
    return game, (number, goal, targets)


def generate_game(kind: GoalKind, split: str, rng: random.Random, difficulty: Difficulty | None = None) -> PackedGame:
    """One solvable game of a task type, in a random floor plan of a split (see `floorplans.SPLITS`).

    Raises GenerationError where no floor plan allows it, AlfworldMissing where alfworld is not installed.
    """
    numbers = [n for n in floor_plan_numbers(split) if possible_goals(n, kind)]
    for _ in range(NUM_TRY):
        made = compose(kind, rng.choice(numbers), split, rng, difficulty or Difficulty())
        if made is not None:
            return made[0]
    raise GenerationError(f"no solvable {kind} game in {NUM_TRY} scenes of {split}: ask for another difficulty")


def generate_games(
    split: str,
    count: int,
    seed: int,
    difficulty: Difficulty | None = None,
    taken: set[GameKey] | None = None,
) -> Iterator[PackedGame]:
    """`count` different solvable games: task types in turn, each over all floor plans that allow it.

    The same arguments yield the same games. `taken` holds tasks not to make again and gains those made: share it
    between splits that share floor plans. Raises GenerationError where a split has no further different game.
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
            used[kind, number] += 1  # also for a failed attempt: a floor plan that is used up must not block the rest
            made = compose(kind, number, split, rng, difficulty or Difficulty())
            if made is not None and made[1] not in taken:
                taken.add(made[1])
                yield made[0]
                break
        else:
            raise GenerationError(
                f"{split}: no further different {kind} game after {index} games ({NUM_TRY} scenes tried): "
                "ask for fewer games or another difficulty"
            )
