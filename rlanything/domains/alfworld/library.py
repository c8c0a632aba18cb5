"""Where games are read from: packed files of generated or real games, or the folder tree of alfworld-download."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlanything.domains.alfworld.game import Template, packed_lines
from rlanything.domains.alfworld.model import TASK_PREFIX
from rlanything.errors import TaskError

# What alfworld-download calls the splits.
FOLDERS = {"eval_in_distribution": "valid_seen", "eval_out_of_distribution": "valid_unseen"}
# What alfworld's own collect_game_files leaves out: tasks its text games cannot state.
LEFT_OUT = ("movable", "Sliced")


@dataclass(frozen=True, slots=True)
class Entry:
    """One game as stored: its sentence, its task type, and the rest compressed (a game's files are 70 kB of text):
    a line of a packed file, which `template` makes whole, or the content of both its files."""

    sentence: str
    kind: str
    stored: bytes
    template: Template | None = None

    def read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What game.tw-pddl and traj_data.json hold."""
        text = zlib.decompress(self.stored).decode()
        if self.template is None:
            data, traj = json.loads(text)
            return data, traj
        game = self.template.unpack(text)
        return game.data, game.traj


class GameLibrary:
    """The games below one folder. A split is `<root>/<split>.jsonl.xz` (packed) or `<root>/json_2.1.1/<split>/`,
    by its own name or alfworld-download's (FOLDERS)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._entries: dict[str, Entry] = {}
        self._splits: dict[str, list[str]] = {}

    def load(self, split: str) -> dict[str, Entry]:
        """The games of a split by source, read once. Raises TaskError naming where it looked."""
        if split not in self._splits:
            found = self._read(split)
            self._entries.update(found)
            self._splits[split] = list(found)
        return {source: self._entries[source] for source in self._splits[split]}

    def paths(self, split: str) -> list[Path]:
        """The files that a split's games are read from: one packed file, or every game.tw-pddl; [] where none is."""
        names = dict.fromkeys((split, FOLDERS.get(split, split)))
        for name in names:
            packed = self.root / f"{name}.jsonl.xz"
            if packed.is_file():
                return [packed]
        for name in names:
            folder = self.root / "json_2.1.1" / name
            files = sorted(folder.glob("*/*/game.tw-pddl"))
            if kept := [f for f in files if not any(word in str(f.relative_to(folder)) for word in LEFT_OUT)]:
                return kept
        return []

    def files(self, source: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The content of a game's game.tw-pddl and traj_data.json."""
        return self._entries[source].read()

    def _read(self, split: str) -> dict[str, Entry]:
        files = self.paths(split)
        if files and files[0].suffix == ".xz":
            return _read_packed(files[0])
        read = [_read_folder(f) for f in files]
        if found := {source: entry for source, entry in read if entry is not None}:
            return found
        raise TaskError(
            f"dataset.path={self.root}: no games of split {split!r}: neither {split}.jsonl.xz nor "
            f"json_2.1.1/{FOLDERS.get(split, split)}/; "
            "generate games with scripts/generate_games.py, or run alfworld-download and set ALFWORLD_DATA"
        )


def _read_packed(file: Path) -> dict[str, Entry]:
    template, found = Template.beside(file), {}
    for line, game in packed_lines(file, template):
        if "task_type" not in game.traj:
            raise TaskError(f"{file}, {game.path}: its traj has no task_type; copy or generate the file anew")
        found[game.path] = Entry(
            _sentence(game.data), game.traj["task_type"], zlib.compress(line.encode(), level=1), template
        )
    return found


def _read_folder(file: Path) -> tuple[str, Entry | None]:
    """(source, game) of a game's folder; None for the game where alfworld-download did not mark it solvable."""
    source = "/".join(file.parent.parts[-3:])
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        traj = json.loads((file.parent / "traj_data.json").read_text(encoding="utf-8"))
        if not data.get("solvable"):
            return source, None
        stored = zlib.compress(json.dumps([data, traj]).encode(), level=1)
        return source, Entry(_sentence(data), traj["task_type"], stored)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise TaskError(
            f"{file}: not a game of json_2.1.1 ({type(error).__name__}: {error}); download it anew or remove it"
        ) from error


def _sentence(data: dict[str, Any]) -> str:
    sentence: str = data["grammar"].split(TASK_PREFIX, 1)[1].split('"', 1)[0]
    return sentence
