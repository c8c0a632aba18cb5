"""The configuration and the folder of a run that was never trained, for the tests of its records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlanything.config.schema import Config
from rlanything.runs.folder import RunFolder


@pytest.fixture
def config(tmp_path: Path) -> Config:
    found = Config()
    found.experiment.name, found.experiment.output_dir, found.experiment.total_step = "demo", str(tmp_path), 40
    for role in ("policy", "reward", "rewriter"):
        getattr(found.model, role).path = f"models/{role}"
    return found


@pytest.fixture
def folder(config: Config) -> Iterator[RunFolder]:
    found = RunFolder(config)
    with found.open():
        yield found
