"""Where games are read from: packed files of generated or real games, or the folder tree of alfworld-download."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlanything.domains.alfworld.game import load_packed
from rlanything.domains.alfworld.model import TASK_PREFIX
from rlanything.domains.base import TaskError

# What alfworld-download calls the splits.
FOLDERS = {"eval_in_distribution": "valid_seen", "eval_out_of_distribution": "valid_unseen"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One game as stored: what its game.tw-pddl and traj_data.json hold, its sentence and its task type."""

    sentence: str
    kind: str
    data: dict[str, Any]
    traj: dict[str, Any]


class GameLibrary:
    """The games below one folder. A split is `<root>/<split>.jsonl.xz` (packed) or `<root>/json_2.1.1/<split>/`."""

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

    def data(self, source: str) -> dict[str, Any]:
        """The content of a game's game.tw-pddl."""
        return self._entries[source].data

    def traj(self, source: str) -> dict[str, Any]:
        """The content of a game's traj_data.json."""
        return self._entries[source].traj

    def _read(self, split: str) -> dict[str, Entry]:
        packed = self.root / f"{split}.jsonl.xz"
        if packed.is_file():
            return {g.path: Entry(_sentence(g.data), g.traj["task_type"], g.data, g.traj) for g in load_packed(packed)}
        for name in (split, FOLDERS.get(split, split)):
            folder = self.root / "json_2.1.1" / name
            files = sorted(folder.glob("*/*/game.tw-pddl"))
            if files:
                return dict(
                    _read_folder(file, f"{name}/{file.parent.parent.name}/{file.parent.name}") for file in files
                )
        raise TaskError(
            f"dataset.path={self.root}: no games of split {split!r}: neither {packed.name} nor "
            f"json_2.1.1/{FOLDERS.get(split, split)}/; "
            "generate games with scripts/generate_games.py, or run alfworld-download and set ALFWORLD_DATA"
        )


def _sentence(data: dict[str, Any]) -> str:
    text: str = data["grammar"].split(TASK_PREFIX, 1)[1].split('"', 1)[0]
    return text


def _read_folder(file: Path, source: str) -> tuple[str, Entry]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        traj = json.loads((file.parent / "traj_data.json").read_text(encoding="utf-8"))
        return source, Entry(_sentence(data), traj["task_type"], data, traj)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise TaskError(
            f"{file}: not a game of json_2.1.1 ({type(error).__name__}: {error}); download it anew or remove it"
        ) from error
