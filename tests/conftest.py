"""A small world, made once a session by the real makers: generated games and a tiny random model with its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class World:
    """See `make_small_world`."""

    games: Path
    model: Path


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> World:
    """Folders of games and model."""
    from make_tiny_models import make_small_world

    return World(*make_small_world(tmp_path_factory.mktemp("world")))
