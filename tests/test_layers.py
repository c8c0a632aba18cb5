"""Imports only go down: the pure floors know nothing above them, and siblings do not know each other."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "rlanything"
PURE = {"types": set(), "config": set(), "feedback": {"types", "config"}, "tasks": {"types"}, "checksum": set()}
SIBLINGS = ("domains", "engines", "learner")


def imported(file: Path) -> set[str]:
    """The parts of our package that a file imports: "engines", "types", ..."""
    tree = ast.parse(file.read_text())
    names = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module]
    names += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    return {name.split(".")[1] for name in names if name.startswith("rlanything.")}


@pytest.mark.parametrize("floor", sorted(PURE))
def test_pure_floors_import_nothing_above_them(floor):
    assert imported(PACKAGE / f"{floor}.py") <= PURE[floor]


@pytest.mark.parametrize("floor", ["types", "config", "feedback", "tasks", "samples"])
def test_pure_floors_need_no_torch(floor):
    assert "import torch" not in (PACKAGE / f"{floor}.py").read_text()


@pytest.mark.parametrize("part", SIBLINGS)
def test_domains_engines_and_learner_do_not_import_one_another(part):
    above = {"loop", "evaluate", "sft", "train", "system", "rollout", "judge", "rewrite", "runs", "cli", "chat"}
    for file in (PACKAGE / part).rglob("*.py"):
        assert not imported(file) & ((set(SIBLINGS) - {part}) | above), file
