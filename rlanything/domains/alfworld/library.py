"""Finds and reads games: packed files, or the folder tree that alfworld-download writes."""

from __future__ import annotations

import json
import logging
import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rlanything.domains.alfworld.export import regoal
from rlanything.domains.alfworld.game import parse_game, task_sentence
from rlanything.domains.alfworld.goals import read_sentence, write_sentence
from rlanything.domains.alfworld.model import Game, Goal, GoalKind
from rlanything.domains.alfworld.planner import plan
from rlanything.domains.alfworld.simulator import Episode
from rlanything.domains.parts import RejectedTask
from rlanything.errors import TaskError
from rlanything.types import Task

logger = logging.getLogger(__name__)

MAX_GAMES = 4096  # parsed games kept in memory
# The names of the splits in alfworld-download.
FOLDERS = {"eval_in_distribution": "valid_seen", "eval_out_of_distribution": "valid_unseen"}
# Task folders that alfworld's own collect_game_files skips: its text games cannot state these tasks.
SKIPPED = ("movable", "Sliced")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedGame:
    """One game of a packed file."""

    path: str
    """<split>/<task folder>/<trial>, as in json_2.1.1."""
    data: dict[str, Any]
    """The content of its game.tw-pddl."""
    traj: dict[str, Any]
    """The part of its traj_data.json that states the task."""
    annotations: tuple[str, ...]
    """Sentences in which people described the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The text that all games of a packed file share."""

    domain: str
    """The PDDL domain."""
    grammar: str
    """The grammar, with {task} in place of the task sentence."""

    @classmethod
    def of(cls, packed: Path) -> Template:
        """Read the template.json in the folder of a packed file. Raises TaskError if either is missing or corrupt."""
        path = packed.parent / "template.json"
        for file in (packed, path):
            if not file.is_file():
                raise TaskError(f"{file}: no such file; a packed data set is a .jsonl.xz and a template.json beside it")
        try:
            template = json.loads(path.read_text())
            return cls(domain=template["pddl_domain"], grammar=template["grammar"])
        except (ValueError, KeyError, TypeError) as error:
            raise TaskError(f"{path}: not the template of packed games ({error!r}); copy the file again") from error

    def unpack(self, line: str) -> PackedGame:
        """Read the game of a line. Raises ValueError, KeyError or TypeError if the line holds none."""
        entry = json.loads(line)
        sentence = json.dumps(entry["task"], ensure_ascii=False)[1:-1]  # the grammar keeps it inside a JSON string
        data = {
            "pddl_domain": self.domain,
            "grammar": self.grammar.replace("{task}", sentence),
            "pddl_problem": entry["problem"],
            "walkthrough": entry["walkthrough"],
            "solvable": True,
        }
        return PackedGame(path=entry["path"], data=data, traj=entry["traj"], annotations=tuple(entry["anns"]))


def packed_lines(path: Path, template: Template) -> Iterator[tuple[str, PackedGame]]:
    """Yield (line, game) of a packed .jsonl.xz one at a time, because the PDDL of one game is 40 kB.

    Raises TaskError if the file is cut or a line is not a game.
    """
    try:
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    game = template.unpack(line)
                except (ValueError, KeyError, TypeError) as error:
                    why = f"not a packed game ({error!r}); copy the file again"
                    raise TaskError(f"{path}, line {number}: {why}") from error
                yield line, game
    except (EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: the file is cut or corrupt ({error}); copy or generate it again") from error


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
    """The games of one data folder, and their variants.

    A split is `<root>/<split>.jsonl.xz` (packed) or `<root>/json_2.1.1/<split>/`, by its own name or by
    alfworld-download's (FOLDERS). A run's accepted variants are the split `<run>/syn_train`.

    A task's payload has `source` (the game whose room it uses), `sentence` and `kind`. A variant's also has `goal` and
    `folder` (the name of its own game's folder).
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.by_source = lru_cache(MAX_GAMES)(self._parse)
        self._entries: dict[str, Entry] = {}
        self._splits: dict[str, dict[str, Entry]] = {}
        self._told: set[tuple[str, str]] = set()

    def load(self, split: str) -> dict[str, Entry]:
        """Return the games of a split by source. They are read once. Raises TaskError, which says where it looked."""
        if split not in self._splits:
            self._splits[split] = self._read(split)
            self._entries |= self._splits[split]
        return self._splits[split]

    def paths(self, split: str) -> list[Path]:
        """List the files of a split: one packed file, or every game.tw-pddl. The list is empty if there are none."""
        names = dict.fromkeys((split, FOLDERS.get(split, split)))
        for name in names:
            packed = self.root / f"{name}.jsonl.xz"
            if packed.is_file():
                return [packed]
        for name in names:
            folder = self.root / "json_2.1.1" / name
            files = sorted(folder.rglob("game.tw-pddl"))  # accepted variants lie one folder less deep
            if kept := [f for f in files if not any(word in str(f.relative_to(folder)) for word in SKIPPED)]:
                if len(kept) < len(files):
                    self._tell(split, len(files) - len(kept), "text games cannot state their tasks")
                return kept
        return []

    def _tell(self, split: str, num: int, why: str) -> None:
        """Say once that games are left out."""
        if (split, why) not in self._told:
            self._told.add((split, why))
            logger.warning("split %s: %d games are left out: %s", split, num, why)

    def of(self, task: Task) -> Game:
        """Return the game that a task is played in. Raises TaskError."""
        game, goal = self.by_source(task.payload["source"]), task.payload.get("goal")
        if goal is None:
            return game
        return game.with_goal(Goal(**{**goal, "kind": GoalKind(goal["kind"])}), task.payload["sentence"])

    def files(self, task: Task) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the contents of a task's game.tw-pddl and traj_data.json; a variant's are made from its room's."""
        data, traj = self._entries[task.payload["source"]].read()
        if "goal" not in task.payload:
            return data, traj
        game = self.of(task)
        return regoal(data, traj, game.goal, game.sentence, plan(Episode(game)) or [])

    def _parse(self, source: str) -> Game:
        """Parse a game. If its sentence states another goal than its own, as adapted games of others do, restate it."""
        data, _ = self._entries[source].read()
        game = parse_game(data, source)
        try:
            stated = read_sentence(game.sentence, game)
        except RejectedTask:  # in words of its own
            return game
        if stated == game.goal:
            return game
        sentence = write_sentence(game.goal)
        logger.warning("%s: its sentence %r is of another goal; players read %r", source, game.sentence, sentence)
        return replace(game, sentence=sentence)

    def _read(self, split: str) -> dict[str, Entry]:
        files = self.paths(split)
        if files and files[0].suffix == ".xz":
            return _read_packed(files[0])
        found = dict(map(_read_folder, files))
        entries = {source: entry for source, entry in found.items() if entry is not None}
        if left_out := sorted(found.keys() - entries):
            self._tell(split, len(left_out), f"they are not marked as solvable, the first: {left_out[0]}")
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
        if game.path in entries:
            raise TaskError(f"{file}, {game.path}: the game occurs twice; remove one of the two lines")
        stored = zlib.compress(line.encode(), level=1)
        entries[game.path] = Entry(sentence=sentence, kind=kind, stored=stored, template=template)
    return entries


def _read_folder(file: Path) -> tuple[str, Entry | None]:
    """Return (source, game) of a game's folder. The game is None if it is not marked as solvable."""
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
