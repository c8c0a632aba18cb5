"""Imports only go down: the pure floors know nothing above them, and siblings do not know each other."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "rlanything"
PURE = {
    "errors": set(),
    "types": set(),
    **{f"config.{file.stem}": {"config", "errors"} for file in (PACKAGE / "config").glob("[!_]*.py")},
    "algorithm.advantages": {"types", "config"},
    "algorithm.diagnostics": {"types"},
    "algorithm.tasks": {"types"},
    "algorithm.samples": {"algorithm", "types"},
    "weights.checksum": set(),
    "weights.lora": {"errors"},
}
SIBLINGS = ("domains", "engines", "learner")


def imported(file: Path) -> set[str]:
    """The parts of our package that a file imports: "engines", "types", ..."""
    tree = ast.parse(file.read_text())
    names = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module]
    names += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    names += [f"rlanything.{a.name}" for n in ast.walk(tree) if _from_package(n) for a in n.names]
    return {name.split(".")[1] for name in names if name.startswith("rlanything.")}


def _from_package(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "rlanything"


@pytest.mark.parametrize("floor", sorted(PURE))
def test_pure_floors_import_nothing_above_them(floor):
    assert imported(PACKAGE / f"{floor.replace(chr(46), chr(47))}.py") <= PURE[floor]


@pytest.mark.parametrize("floor", sorted(set(PURE) - {"weights.checksum", "weights.lora"}))
def test_pure_floors_need_no_torch(floor):
    code = f"import sys, rlanything.{floor}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_sandbox_knows_nothing_of_what_is_executed_in_it():
    for file in (PACKAGE / "sandbox").glob("*.py"):
        assert imported(file) <= {"errors", "processes", "sandbox"}, file


@pytest.mark.parametrize("part", SIBLINGS)
def test_domains_engines_and_learner_do_not_import_one_another(part):
    above = {"loop", "evaluate", "sft", "train", "system", "rollout", "judge", "rewrite", "runs", "cli", "chat"}
    for file in (PACKAGE / part).rglob("*.py"):
        assert not imported(file) & ((set(SIBLINGS) - {part}) | above), file
