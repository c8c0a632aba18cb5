"""States a goal as ALFWorld's files do: PDDL section, parameters of traj_data.json, folder name.

The PDDL comes from alfworld's goal_library, as in every real game.
"""

from __future__ import annotations

from typing import Any

from rlanything.domains.alfworld.floorplans import package_module
from rlanything.domains.alfworld.model import Goal


def goal_pddl(goal: Goal) -> str:
    """Write the `(:goal ...)` section, which also closes the problem."""
    text: str = package_module("goal_library").gdict[goal.kind]["pddl"]
    filled = text.format(obj=goal.object_type, recep=goal.receptacle_type, toggle=goal.lamp_type)
    return filled.replace("#", "-").strip()


def pddl_params(goal: Goal) -> dict[str, Any]:
    """Return `pddl_params` of traj_data.json."""
    return {
        "mrecep_target": "",
        "object_sliced": False,
        "object_target": goal.object_type,
        "parent_target": goal.receptacle_type or "",
        "toggle_target": goal.lamp_type or "",
    }


def task_folder(goal: Goal, number: int) -> str:
    """Name the folder that holds the trials of a goal in floor plan `number`, as in json_2.1.1."""
    return f"{goal.kind}-{goal.object_type}-None-{goal.receptacle_type or goal.lamp_type}-{number}"
