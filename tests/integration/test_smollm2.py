"""A real pretrained model, its own tokenizer and chat template, through one whole step of the loop on both engines."""

import itertools
import sys
from pathlib import Path
from subprocess import run

import pytest
from runs_helpers import small_config

from rlanything.domains.alfworld.domain import AlfworldJudging
from rlanything.runs.metrics import read_jsonl
from rlanything.runs.store import read_rows
from rlanything.train import train

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """Folder of SmolLM2-135M-Instruct, fetched once."""
    root = Path(__file__).parents[2]
    folder = root / "cache/smollm2"
    if not (folder / "config.json").is_file():
        run([sys.executable, str(root / "scripts/fetch_smollm2.py"), "--out", str(folder)], check=True)
    return folder


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_smollm2_takes_one_whole_step(world, smollm2, tmp_path, monkeypatch, engine):
    # So small a model never boxes a score: these come in turn, so that turns and judgements differ and both models have
    # something to learn, whatever the CPU's rounding lets them say.
    scores = itertools.cycle([1, 1, 1, -1, -1, -1, -1, 1, 1, 1])
    monkeypatch.setattr(AlfworldJudging, "parse", lambda self, text: (next(scores), ""))
    config = small_config(world.games, smollm2, tmp_path, "smollm2", engine)
    config.experiment.total_step, config.experiment.num_thread = 1, 2
    config.dataset.prompt, config.dataset.options = "full", {}
    config.rollout.num_trial, config.rollout.num_rollout_per_trial, config.rollout.max_interaction_step = 1, 2, 3
    config.rollout.max_response_tokens, config.reward.max_response_tokens = 256, 48
    config.adaptation.num_try = 1
    config.evaluation.splits = []
    for role in ("policy", "reward", "rewriter"):
        config.engine.of(role).max_model_len = 4096
        config.engine.of(role).kv_cache_gb = 0.5
    for role in ("policy", "reward"):
        learner = config.training.of(role)
        learner.lr, learner.num_update, learner.micro_batch_tokens = 1e-6, 1, 4096
    train(config)

    [record] = read_jsonl(tmp_path / "smollm2/metrics.jsonl")
    rows = read_rows(tmp_path / "smollm2/rollouts/step_000001.parquet")
    turns = [turn for row in rows for turn in row["turns"]]
    assert len(rows) == 2 and sum(len(row["judgements"]) for row in rows) == 2 * len(turns)
    assert len(turns) == 6 or any(t["stop_reason"] == "length" for t in turns)
    words = " ".join(t["text"] for t in turns).split()
    assert len(set(words)) > 20, "an instruct model says something"
    # The engine samples what the learner trains: the same numbers, from the same weights, token for token.
    assert record["policy/logprob_abs_diff"] < 1e-3
    assert record["reward/logprob_abs_diff"] < 1e-3
    for role in ("policy", "reward"):
        assert record[f"{role}/num_update"] == 1 and record[f"{role}/grad_norm"] > 0, role
