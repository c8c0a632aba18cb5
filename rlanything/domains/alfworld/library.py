"""Finds games: packed files of generated or real games, or the folder tree that alfworld-download writes."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlanything.domains.alfworld.game import Template, packed_lines, task_sentence
from rlanything.errors import TaskError

# The names of the splits in alfworld-download.
FOLDERS = {"eval_in_distribution": "valid_seen", "eval_out_of_distribution": "valid_unseen"}
# Task folders that alfworld's own collect_game_files skips: its text games cannot state these tasks.
SKIPPED = ("movable", "Sliced")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One stored game. Its files are 70 kB of text, so they are kept compressed."""

    sentence: str
    kind: str
    """The task type."""
    stored: bytes
    """Compressed: a line of a packed file, or the JSON contents of both files of a game's folder."""
    template: Template | None = None
    """What completes a line of a packed file."""

    def read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the contents of the game's game.tw-pddl and traj_data.json."""
        text = zlib.decompress(self.stored).decode()
        if self.template is None:
            data, traj = json.loads(text)
            return data, traj
        game = self.template.unpack(text)
        return game.data, game.traj


class GameLibrary:
    """The games in one folder.

    A split is `<root>/<split>.jsonl.xz` (packed) or `<root>/json_2.1.1/<split>/`, by its own name or by
    alfworld-download's (FOLDERS).
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._entries: dict[str, Entry] = {}
        self._splits: dict[str, list[str]] = {}

    def load(self, split: str) -> dict[str, Entry]:
        """Return the games of a split by source. They are read once. Raises TaskError, which says where it looked."""
        if split not in self._splits:
            entries = self._read(split)
            self._entries.update(entries)
            self._splits[split] = list(entries)
        return {source: self._entries[source] for source in self._splits[split]}

    def paths(self, split: str) -> list[Path]:
        """List the files of a split: one packed file, or every game.tw-pddl. The list is empty if there are none."""
        names = dict.fromkeys((split, FOLDERS.get(split, split)))
        for name in names:
            packed = self.root / f"{name}.jsonl.xz"
            if packed.is_file():
                return [packed]
        for name in names:
            folder = self.root / "json_2.1.1" / name
            files = sorted(folder.glob("*/*/game.tw-pddl"))
            if kept := [f for f in files if not any(word in str(f.relative_to(folder)) for word in SKIPPED)]:
                return kept
        return []

    def files(self, source: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the contents of a game's game.tw-pddl and traj_data.json."""
        return self._entries[source].read()

    def _read(self, split: str) -> dict[str, Entry]:
        files = self.paths(split)
        if files and files[0].suffix == ".xz":
            return _read_packed(files[0])
        entries = {source: entry for source, entry in map(_read_folder, files) if entry is not None}
        if entries:
            return entries
        raise TaskError(
            f"dataset.path={self.root}: no games of split {split!r}, neither {split}.jsonl.xz nor "
            f"json_2.1.1/{FOLDERS.get(split, split)}/; "
            "generate games with scripts/generate_games.py, or run alfworld-download and set ALFWORLD_DATA"
        )


def _read_packed(file: Path) -> dict[str, Entry]:
    template, entries = Template.of(file), {}
    for line, game in packed_lines(file, template):
        sentence, kind = task_sentence(game.data["grammar"]), game.traj.get("task_type")
        if sentence is None or kind is None:
            raise TaskError(f"{file}, {game.path}: no task sentence or no task_type; copy or generate the file again")
        stored = zlib.compress(line.encode(), level=1)
        entries[game.path] = Entry(sentence=sentence, kind=kind, stored=stored, template=template)
    return entries


def _read_folder(file: Path) -> tuple[str, Entry | None]:
    """Return (source, game) of a game's folder. The game is None if alfworld-download did not mark it solvable."""
    source = "/".join(file.parent.parts[-3:])
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        traj = json.loads((file.parent / "traj_data.json").read_text(encoding="utf-8"))
        if not data.get("solvable"):
            return source, None
        sentence = task_sentence(data["grammar"])
        if sentence is None:
            raise ValueError("no task sentence in its grammar")
        stored = zlib.compress(json.dumps([data, traj]).encode(), level=1)
        return source, Entry(sentence=sentence, kind=traj["task_type"], stored=stored)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TaskError(
            f"{file}: not a game of json_2.1.1 ({type(error).__name__}: {error}); download it again or remove it"
        ) from error
