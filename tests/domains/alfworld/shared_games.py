"""The real games that tests share, parsed once a test run."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from rlanything.domains.alfworld.game import Game, load_packed, parse_game

SHARED = Path(os.environ.get("RLANYTHING_SHARED", Path(__file__).parents[4] / "shared"))
SPLITS = ("valid_seen", "train")


def packed(split: str) -> Path:
    """The packed file of a split; skips the test where it is absent."""
    path = SHARED / "data" / "alfworld" / f"{split}.jsonl.xz"
    if not path.is_file():
        pytest.skip(f"{path} is absent: set RLANYTHING_SHARED to the folder that holds data/alfworld")
    return path


@cache
def real_games(split: str) -> tuple[Game, ...]:
    """All games of a split (valid_seen: 140, 0.3 s; train: 3,553, 5 s)."""
    return tuple(parse_game(game.data, game.path) for game in load_packed(packed(split)))
