"""Writes games, packed into one file or as ALFWorld's folders, and reads packed games again."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path

from rlanything.domains.alfworld.export import write_game
from rlanything.domains.alfworld.game import TASK_RULE
from rlanything.domains.alfworld.library import PackedGame, Template, packed_lines
from rlanything.domains.alfworld.model import TASK_PREFIX
from rlanything.errors import TaskError
from rlanything.processes.files import written_at_once

XZ_PRESET = 1  # games repeat themselves so much that higher presets save little and take minutes longer


def _split_sentence(game: PackedGame) -> tuple[str, str]:
    """Return the task sentence of a game, and its grammar with {task} in place of the sentence."""
    rule = TASK_RULE.search(game.data["grammar"])
    if rule is None:
        raise TaskError(f"{game.path}: no task sentence in the grammar; the game is not one of ALFWorld's")
    grammar = TASK_RULE.sub(rf'\1"{TASK_PREFIX}{{task}}"', game.data["grammar"])
    return json.loads(rule[2]).removeprefix(TASK_PREFIX), grammar


def write_packed(path: Path, games: Iterable[PackedGame]) -> int:
    """Write games as one .jsonl.xz, and the text that all games share as template.json beside it.

    Returns the number of games. Equal games give equal bytes. Raises TaskError if a game's domain or grammar differs
    from the template's.
    """
    template_path = path.parent / "template.json"
    template = json.loads(template_path.read_text(encoding="utf-8")) if template_path.exists() else None
    count = 0
    with written_at_once(path) as new, lzma.open(new, "wt", encoding="utf-8", preset=XZ_PRESET) as lines:
        for game in games:
            sentence, grammar = _split_sentence(game)
            shared = {"pddl_domain": game.data["pddl_domain"], "grammar": grammar}
            if template is None:
                template = shared
                with written_at_once(template_path) as new_template:
                    new_template.write_text(json.dumps(template), encoding="utf-8")
            if shared != template:
                raise TaskError(f"{game.path}: its domain or grammar differs from {template_path}; use another folder")
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


def load_packed(path: Path) -> Iterator[PackedGame]:
    """Yield the games of a packed .jsonl.xz, whose folder must hold template.json too. Raises TaskError."""
    return (game for _, game in packed_lines(path, Template.of(path)))


def export_games(root: Path, games: Iterable[PackedGame]) -> int:
    """Write games as <root>/json_2.1.1/<split>/<task folder>/<trial>/, for ALFWorld's tools.

    Returns the number of new games. A game whose folder exists is left alone, because its name is unique to it.
    """
    count = 0
    for game in games:
        folder = root / "json_2.1.1" / game.path
        if not folder.exists():
            write_game(folder, game.data, game.traj)
            count += 1
    return count
