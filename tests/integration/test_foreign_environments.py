"""Another project's environment through the loop: default judge, default rewriter, both updates, exact files."""

from collections import Counter

import pytest
from runs_helpers import small_config

from rlanything.config.schema import DatasetConfig
from rlanything.runs.metrics import read_jsonl
from rlanything.runs.store import read_rows
from rlanything.train import train

pytestmark = pytest.mark.integration
LAKE = {"id": "FrozenLake-v1", "arguments": {"map_name": "4x4", "is_slippery": False}, "num_task": 8}


def test_a_game_of_gymnasium_is_trained_on_and_judged(world, tmp_path):
    config = small_config(world.games, world.model, tmp_path, "lake")
    config.dataset = DatasetConfig(domain="gymnasium", prompt="compact", options=LAKE)
    config.experiment.total_step, config.experiment.eval_every = 1, 1
    config.evaluation.splits = ["unseen"]
    train(config)
    records = Counter(record["phase"] for record in read_jsonl(tmp_path / "lake/metrics.jsonl"))
    assert records == {"eval": 2, "train": 1}
    rows = read_rows(tmp_path / "lake/rollouts/step_000001.parquet")
    assert len(rows) >= 4 and all(row["first_observation"].startswith("S(on red)") for row in rows)
    assert all(row["judgements"] for row in rows) and all(turn["invalid"] for row in rows for turn in row["turns"])
    assert (tmp_path / "lake/report.html").is_file()
