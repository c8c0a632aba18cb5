"""Gives games a new goal, and writes them as ALFWorld's folders.

Files and folders are written under a temporary name and then renamed, so nobody reads a half-written game.
"""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

from rlanything.domains.alfworld.game import TASK_RULE
from rlanything.domains.alfworld.goals import goal_pddl, pddl_params
from rlanything.domains.alfworld.model import TASK_PREFIX, Goal
from rlanything.errors import TaskError
from rlanything.processes.files import written_at_once

_REGOALED = re.compile(r"_r[0-9a-f]{12}$")


def write_game(folder: Path, data: dict[str, Any], traj: dict[str, Any]) -> Path:
    """Write one game's folder as in json_2.1.1: game.tw-pddl, initial_state.pddl and traj_data.json.

    An older folder of this name is replaced. Returns the path of game.tw-pddl.
    """
    with written_at_once(folder) as new:
        new.mkdir()
        (new / "game.tw-pddl").write_text(json.dumps(data), encoding="utf-8")
        (new / "initial_state.pddl").write_text(data["pddl_problem"], encoding="utf-8")
        (new / "traj_data.json").write_text(json.dumps(traj, indent=1), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
    return folder / "game.tw-pddl"


def regoal(
    data: dict[str, Any], traj: dict[str, Any], goal: Goal, sentence: str, walkthrough: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make a new game in the same room, with another PDDL goal, sentence and walkthrough.

    `sentence` lacks "Your task is to: ". Returns the contents of game.tw-pddl and traj_data.json; the arguments are
    not changed. Raises TaskError if the game has no goal or no task.
    """
    problem: str = data["pddl_problem"]
    start = problem.find("(:goal")
    task = json.dumps(TASK_PREFIX + sentence, ensure_ascii=False)
    grammar, replaced = TASK_RULE.subn(lambda match: match.group(1) + task, data["grammar"])
    if start < 0 or replaced != 1:
        raise TaskError(
            f"{traj.get('task_id', 'game')}: found {int(start >= 0)} (:goal ...) in pddl_problem and {replaced} task "
            "sentences in the grammar, expected one each; the game is not one of ALFWorld's"
        )
    digest = hashlib.sha256(f"{goal}{sentence}".encode()).hexdigest()[:12]
    task_id = _REGOALED.sub("", traj["task_id"]) + f"_r{digest}"
    new_data = data | {
        "pddl_problem": problem[:start] + goal_pddl(goal) + "\n",
        "grammar": grammar,
        "walkthrough": list(walkthrough),
        "solvable": True,
    }
    new_traj = traj | {
        "task_id": task_id,
        "task_type": str(goal.kind),
        "pddl_params": pddl_params(goal),
        "turk_annotations": {"anns": [{"task_desc": sentence}]},
    }
    new_traj.pop("plan", None)  # the recorded demonstration was of the old goal
    return new_data, new_traj
