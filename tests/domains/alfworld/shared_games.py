"""The real games that tests share. They are parsed once in a test run."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import pytest
from alfworld_games.files import load_packed

from rlanything.domains.alfworld.game import Game, parse_game

SHARED = Path(os.environ.get("RLANYTHING_SHARED", Path(__file__).parents[4] / "shared"))
SPLITS = ("valid_seen", "train")


def packed(split: str) -> Path:
    """Return the packed file of a split, or skip the test if there is none."""
    path = SHARED / "data" / "alfworld" / f"{split}.jsonl.xz"
    if not path.is_file():
        pytest.skip(f"{path} is missing: set RLANYTHING_SHARED to the folder that holds data/alfworld")
    return path


def read_game(path: Path) -> Game:
    """Read a game.tw-pddl."""
    return parse_game(json.loads(path.read_text(encoding="utf-8")), str(path))


@cache
def real_games(split: str) -> tuple[Game, ...]:
    """Parse all games of a split (valid_seen: 140, 0.3 s; train: 3,553, 5 s)."""
    return tuple(parse_game(game.data, game.path) for game in load_packed(packed(split)))
