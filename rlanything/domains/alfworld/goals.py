"""States a goal as ALFWorld's files do: PDDL section, parameters of traj_data.json, folder name.

The PDDL comes from alfworld's goal_library, as in every real game.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from rlanything.domains.alfworld.model import Goal
from rlanything.errors import ClearError


class AlfworldMissing(ClearError, RuntimeError):
    """The alfworld package, or a file of it, is missing."""


@cache
def package_folder() -> Path:
    """Find the folder of the installed alfworld package without importing it. Raises AlfworldMissing."""
    spec = importlib.util.find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        raise AlfworldMissing(
            "the Python package alfworld is not installed, whose floor plans are needed to generate games; "
            "run `pip install --no-deps alfworld==0.4.2`"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def package_file(*parts: str) -> Path:
    """Find a file of the alfworld package. Raises AlfworldMissing, which names the file."""
    path = package_folder().joinpath(*parts)
    if not path.is_file():
        raise AlfworldMissing(f"{path}: no such file, expected one of alfworld==0.4.2; reinstall that version")
    return path


@cache
def package_module(name: str) -> ModuleType:
    """Load the module `constants` or `goal_library` of alfworld.gen alone."""
    spec = importlib.util.spec_from_file_location(f"_alfworld_{name}", package_file("gen", f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
