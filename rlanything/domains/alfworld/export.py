"""Games to disk: as real ALFWorld folders, or packed; and games with a new goal made from existing ones.

A file or folder appears by rename, so a half-written game is never read.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlanything.domains.alfworld.game import PackedGame
from rlanything.domains.alfworld.goals import goal_pddl, pddl_params
from rlanything.domains.alfworld.model import TASK_PREFIX, Goal
from rlanything.errors import TaskError

XZ_PRESET = 1  # games repeat themselves so much that higher presets save little and cost minutes
_TASK_RULE = re.compile(r'("rhs":\s*)"Your task is to: (?:[^"\\]|\\.)*"')
_REGOALED = re.compile(r"_r[0-9a-f]{12}$")


@contextmanager
def _appearing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it where the block succeeds, else removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)


def write_game(folder: Path, data: dict[str, Any], traj: dict[str, Any]) -> Path:
    """Write one game's folder as json_2.1.1 has it (game.tw-pddl, initial_state.pddl, traj_data.json).

    Returns the path of game.tw-pddl. Raises TaskError where the folder is there already.
    """
    if folder.exists():
        raise TaskError(f"{folder}: there is a game already; remove it or choose another name")
    with _appearing(folder) as new:
        new.mkdir()
        (new / "game.tw-pddl").write_text(json.dumps(data), encoding="utf-8")
        (new / "initial_state.pddl").write_text(data["pddl_problem"], encoding="utf-8")
        (new / "traj_data.json").write_text(json.dumps(traj, indent=1), encoding="utf-8")
    return folder / "game.tw-pddl"


def move_game(folder: Path, old_root: Path, new_root: Path | None) -> Path | None:
    """Move a game's folder, with its place below `old_root`, to `new_root`; remove it where that is None.

    Returns the new folder. A move that was done before (a resumed run repeats it) is no error; TaskError where the
    game is in neither place.
    """
    if not folder.is_relative_to(old_root):
        raise TaskError(f"{folder}: not below {old_root}; only games below it are moved")
    if new_root is None:
        if folder.exists():
            shutil.rmtree(folder)
        return None
    target = new_root / folder.relative_to(old_root)
    if folder.exists():
        if target.exists():
            shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(folder, target)
    elif not target.exists():
        raise TaskError(f"{folder}: the game to move is gone, and {target} has none; was the folder cleaned?")
    return target


def regoal(
    data: dict[str, Any], traj: dict[str, Any], goal: Goal, sentence: str, walkthrough: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A new game in the same room: new PDDL goal, new sentence (without "Your task is to: "), new walkthrough, and
    traj_data that says so. The arguments are left as they are. Raises TaskError where the game has no goal or task.
    """
    problem: str = data["pddl_problem"]
    start = problem.find("(:goal")
    task = json.dumps(TASK_PREFIX + sentence, ensure_ascii=False)
    grammar, replaced = _TASK_RULE.subn(lambda match: match.group(1) + task, data["grammar"])
    if start < 0 or replaced != 1:
        raise TaskError(
            f"{traj.get('task_id', 'game')}: expected one (:goal ...) in pddl_problem and one task sentence in the "
            f"grammar, found {int(start >= 0)} and {replaced}; the game is not one of ALFWorld's"
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


def _sentence_of(game: PackedGame) -> tuple[str, str]:
    """(task sentence, grammar with {task} in its place) of a game."""
    found = _TASK_RULE.search(game.data["grammar"])
    if found is None:
        raise TaskError(f"{game.path}: the grammar has no task sentence; the game is not one of ALFWorld's")
    line: str = json.loads(found.group()[len(found.group(1)) :])
    shared = _TASK_RULE.sub(rf'\1"{TASK_PREFIX}{{task}}"', game.data["grammar"])
    return line.removeprefix(TASK_PREFIX), shared


def write_packed(path: Path, games: Iterable[PackedGame]) -> int:
    """Write games as one .jsonl.xz, with the text that all share in template.json beside it; returns their number.

    Equal games give equal bytes. Raises TaskError where a game's domain or grammar differs from the template's.
    """
    template_path = path.parent / "template.json"
    template = json.loads(template_path.read_text(encoding="utf-8")) if template_path.exists() else None
    count = 0
    with _appearing(path) as new, lzma.open(new, "wt", encoding="utf-8", preset=XZ_PRESET) as lines:
        for game in games:
            sentence, grammar = _sentence_of(game)
            shared = {"pddl_domain": game.data["pddl_domain"], "grammar": grammar}
            if template is None:
                template = shared
                with _appearing(template_path) as new_template:
                    new_template.write_text(json.dumps(template), encoding="utf-8")
            if shared != template:
                raise TaskError(f"{game.path}: domain or grammar differ from {template_path}; use another folder")
            entry = {
                "path": game.path,
                "task": sentence,
                "problem": game.data["pddl_problem"],
                "walkthrough": game.data["walkthrough"],
                "traj": game.traj,
                "anns": list(game.annotations),
            }
            lines.write(json.dumps(entry) + "\n")
            count += 1
    return count


def export_games(root: Path, games: Iterable[PackedGame]) -> int:
    """Write games as <root>/json_2.1.1/<split>/<task folder>/<trial>/, for ALFWorld's tools; returns how many are new.

    A game that is there already is left alone: its name is unique to it.
    """
    count = 0
    for game in games:
        folder = root / "json_2.1.1" / game.path
        if not folder.exists():
            write_game(folder, game.data, game.traj)
            count += 1
    return count
