"""Another project's environment through the loop: default judge, default rewriter, both updates, exact files."""

import os
from collections import Counter
from pathlib import Path

import pytest
from openenv_guest import needs_openenv, start_guess
from runs_helpers import small_config

from rlanything.config.schema import DatasetConfig
from rlanything.runs.metrics import read_jsonl
from rlanything.runs.store import read_rows
from rlanything.train import train

pytestmark = pytest.mark.integration
HERE = Path(__file__).parents[1]
VERIFIERS_PYTHON = os.environ.get("VERIFIERS_PYTHON") or str(HERE.parent / "cache/verifiers/bin/python")
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
    assert_rewritten(tmp_path / "lake")


@needs_openenv
def test_an_environment_of_openenv_is_trained_on_judged_and_given_to_the_rewriter(world, tmp_path):
    process, url = start_guess()
    config = small_config(world.games, world.model, tmp_path, "guess")
    options = {"url": url, "max_sessions": 4, "num_task": 4, "observation": "{hint}"}
    config.dataset = DatasetConfig(domain="openenv", prompt="compact", options=options)
    config.experiment.total_step, config.experiment.eval_every = 1, 1
    config.evaluation.splits = ["unseen"]
    try:
        train(config)
    finally:
        process.kill()
        process.wait()
    rows = read_rows(tmp_path / "guess/rollouts/step_000001.parquet")
    assert len(rows) >= 4 and all(row["first_observation"] == "Guess a number from 1 to 8." for row in rows)
    assert all(row["judgements"] for row in rows)
    assert_rewritten(tmp_path / "guess")


def assert_rewritten(run: Path) -> None:
    """The random policy solves nothing, so easier variants were asked for; the random rewriter proposes none."""
    [record] = [r for r in read_jsonl(run / "metrics.jsonl") if r["phase"] == "train"]
    asked = [value for key, value in record.items() if key.startswith(("tasks/proposed", "tasks/rejected_"))]
    assert record["failures"] == 0 and sum(asked) > 0, record


@pytest.mark.skipif(not Path(VERIFIERS_PYTHON).exists(), reason="run scripts/foreign_environments.sh")
def test_an_environment_of_verifiers_is_trained_on_token_by_token_as_it_was_sampled(world, tmp_path, monkeypatch):
    monkeypatch.chdir(HERE / "verifiers_world")
    config = small_config(world.games, world.model, tmp_path, "guess")
    options = {"id": "guess_v1", "python": VERIFIERS_PYTHON, "num_task": 4}
    config.dataset = DatasetConfig(domain="verifiers", prompt="compact", options=options)
    config.experiment.total_step, config.experiment.eval_every = 1, 1
    config.evaluation.splits = ["eval_in_distribution"]
    train(config)
    rows = read_rows(tmp_path / "guess/rollouts/step_000001.parquet")
    assert len(rows) >= 4 and all(row["first_observation"] == "Guess a number from 1 to 8." for row in rows)
    assert all(row["judgements"] for row in rows) and max(len(row["turns"]) for row in rows) > 1
    assert all(len(turn["response_ids"]) == len(turn["logprobs"]) > 0 for row in rows for turn in row["turns"])
    assert_rewritten(tmp_path / "guess")
