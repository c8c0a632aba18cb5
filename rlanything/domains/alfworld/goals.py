"""A goal as ALFWorld's files state it: PDDL section, parameters of traj_data.json, folder name.

The PDDL is that of alfworld's goal_library, as every real game has it.
"""

from __future__ import annotations

from typing import Any

from rlanything.domains.alfworld.floorplans import package_module
from rlanything.domains.alfworld.model import Goal


def goal_pddl(goal: Goal) -> str:
    """The `(:goal ...)` section; it also closes the problem."""
    text: str = package_module("goal_library").gdict[goal.kind]["pddl"]
    filled = text.format(obj=goal.object_type, recep=goal.receptacle_type, toggle=goal.lamp_type)
    return filled.replace("#", "-").strip()


def pddl_params(goal: Goal) -> dict[str, Any]:
    """`pddl_params` of traj_data.json."""
    return {
        "mrecep_target": "",
        "object_sliced": False,
        "object_target": goal.object_type,
        "parent_target": goal.receptacle_type or "",
        "toggle_target": goal.lamp_type or "",
    }


def task_folder(goal: Goal, number: int) -> str:
    """Name of the folder that holds the trials of a goal in a floor plan, as json_2.1.1 has it."""
    return f"{goal.kind}-{goal.object_type}-None-{goal.receptacle_type or goal.lamp_type}-{number}"
