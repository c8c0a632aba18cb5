"""Imports only go down: a room knows nothing of those above it, and siblings do not know each other."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "rlanything"
# What each room may import of the others, from the ground up; a room that is not named may import everything.
BELOW = {
    "errors": set(),
    "types": set(),
    "processes": {"errors"},
    "weights": {"errors", "processes"},
    "config": {"errors"},
    "sandbox": {"errors", "processes"},
    "algorithm": {"errors", "types", "config"},
    "domains": {"errors", "types", "config", "algorithm", "processes", "sandbox"},
    "engines": {"errors", "types", "config", "processes", "weights"},
    "learner": {"errors", "types", "config", "processes", "weights"},
    "rollout": {"errors", "types", "config", "algorithm", "domains", "engines", "runs"},
    "plan": {"errors", "types", "config", "algorithm", "domains", "engines", "learner", "weights", "runs"},
    "runs": {"errors", "types", "config", "algorithm", "processes", "weights"},
}
WITHOUT_TORCH = ("errors", "types", "config", "algorithm", "domains.base", "domains.parts")


def imported(file: Path) -> set[str]:
    """The rooms of our package that a file imports: "engines", "types", ..."""
    tree = ast.parse(file.read_text())
    names = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module]
    names += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    names += [f"rlanything.{a.name}" for n in ast.walk(tree) if _from_package(n) for a in n.names]
    return {name.split(".")[1] for name in names if name.startswith("rlanything.")}


def _from_package(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "rlanything"


def files(room: str) -> list[Path]:
    folder = PACKAGE / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


@pytest.mark.parametrize("room", sorted(BELOW))
def test_a_room_imports_nothing_above_it(room):
    for file in files(room):
        assert imported(file) <= BELOW[room] | {room}, file


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_the_pure_floors_need_no_torch(module):
    names = [f"rlanything.{module}"]
    if (PACKAGE / module).is_dir():
        names = [f"rlanything.{module}.{file.stem}" for file in files(module) if file.stem != "__init__"]
    code = f"import sys, {', '.join(names)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nothing_outside_the_domains_asks_which_domain_it_has():
    for file in PACKAGE.rglob("*.py"):
        if PACKAGE / "domains" not in file.parents:
            text = file.read_text()
            assert not any(word in text for word in ("isinstance(domain", "isinstance(self.domain")), file
            assert not re.search(r"""[!=]= *["'](alfworld|coding)""", text), file
