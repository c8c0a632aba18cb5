"""Where games are read from: packed files of generated or real games, or the folder tree of alfworld-download."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlanything.domains.alfworld.game import load_packed
from rlanything.domains.alfworld.model import TASK_PREFIX
from rlanything.domains.base import TaskError

# What alfworld-download calls the splits.
FOLDERS = {"eval_in_distribution": "valid_seen", "eval_out_of_distribution": "valid_unseen"}
# What alfworld's own collect_game_files leaves out: tasks its text games cannot state.
LEFT_OUT = ("movable", "Sliced")


@dataclass(frozen=True, slots=True)
class Entry:
    """One game as stored: its sentence, its task type, and its files compressed (a game's PDDL is 40 kB of text)."""

    sentence: str
    kind: str
    files: bytes

    @classmethod
    def of(cls, data: dict[str, Any], traj: dict[str, Any]) -> Entry:
        """From what game.tw-pddl and traj_data.json hold. Raises KeyError, IndexError where they are no game's."""
        sentence = data["grammar"].split(TASK_PREFIX, 1)[1].split('"', 1)[0]
        return cls(sentence, traj["task_type"], zlib.compress(json.dumps([data, traj]).encode(), level=1))

    def read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What game.tw-pddl and traj_data.json hold."""
        data, traj = json.loads(zlib.decompress(self.files))
        return data, traj


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

    def files(self, source: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The content of a game's game.tw-pddl and traj_data.json."""
        return self._entries[source].read()

    def _read(self, split: str) -> dict[str, Entry]:
        packed = self.root / f"{split}.jsonl.xz"
        if packed.is_file():
            return {g.path: Entry.of(g.data, g.traj) for g in load_packed(packed)}
        for name in (split, FOLDERS.get(split, split)):
            folder = self.root / "json_2.1.1" / name
            files = sorted(folder.glob("*/*/game.tw-pddl"))
            read = [_read_folder(f) for f in files if not any(word in str(f.relative_to(folder)) for word in LEFT_OUT)]
            if found := {source: entry for source, entry in read if entry is not None}:
                return found
        raise TaskError(
            f"dataset.path={self.root}: no games of split {split!r}: neither {packed.name} nor "
            f"json_2.1.1/{FOLDERS.get(split, split)}/; "
            "generate games with scripts/generate_games.py, or run alfworld-download and set ALFWORLD_DATA"
        )


def _read_folder(file: Path) -> tuple[str, Entry | None]:
    """(source, game) of a game's folder; None for the game where alfworld-download did not mark it solvable."""
    source = "/".join(file.parent.parts[-3:])
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        traj = json.loads((file.parent / "traj_data.json").read_text(encoding="utf-8"))
        return source, Entry.of(data, traj) if data.get("solvable") else None
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise TaskError(
            f"{file}: not a game of json_2.1.1 ({type(error).__name__}: {error}); download it anew or remove it"
        ) from error
