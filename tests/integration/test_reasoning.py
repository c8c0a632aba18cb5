"""Reasoning with the code tool through the whole program; the tiny model knows no calls and boxes no numbers."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from runs_helpers import command, small_config

from rlanything.runs.metrics import read_jsonl
from rlanything.runs.store import read_rows
from rlanything.sandbox.kernel import SUPPORTED

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not SUPPORTED, reason="the sandbox wants Linux")]
DATA = Path(os.environ.get("RLANYTHING_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "data/reasoning"
PROBLEMS = [{"question": f"What is {i} * {i + 1}?", "answer": i * (i + 1), "kind": "product"} for i in range(6)]


@pytest.fixture
def config(world, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "held_out"):
        (data / f"{split}.jsonl").write_text("\n".join(map(json.dumps, PROBLEMS)))
    config = small_config(data, world.model, tmp_path, "run")
    config.dataset.domain, config.dataset.options = "reasoning", {"grading": "text"}
    config.evaluation.splits, config.adaptation.enabled = ["held_out"], False
    config.sandbox.num_runner, config.experiment.total_step = 2, 1
    return config


def test_a_run_trains_and_reports_and_an_evaluation_goes_on_where_it_stopped(config, tmp_path, forked):
    config.algorithm.band = [0.0, 1.0]
    result = forked.run(command(config, tmp_path, "reasoning_rl.py")[1:])
    assert result.returncode == 0, result.stderr
    [record] = [r for r in read_jsonl(tmp_path / "run/metrics.jsonl") if r["phase"] == "train"]
    # the model learned to box actions of games, so that a few of its texts are wrong answers
    assert record["action/void"] >= 0.5 and record["action/void"] + record.get("action/answer", 0) == 1, record
    assert record["failures"] == 0 and record["ended/done"] + record.get("ended/length", 0) == 1, record
    assert "reward/samples" in record and "What is" in (tmp_path / "run/report.html").read_text()
    assert all(row["judgements"] for row in read_rows(tmp_path / "run/rollouts/step_000001.parquet"))

    config.experiment.name, config.evaluation.num_rollout, config.evaluation.num_task = "eval", 3, 0
    for _ in range(2):
        result = forked.run(command(config, tmp_path, "reasoning_eval.py")[1:])
        assert result.returncode == 0 and "product" in result.stdout, result.stderr
    [figures] = read_jsonl(tmp_path / "eval/metrics.jsonl")
    assert figures["success_rate"] == 0 and figures["pass@3"] == 0


def test_a_template_without_tools_is_named_before_a_model_is_loaded(config, tmp_path, forked):
    config.dataset.prompt = "full"
    result = forked.run(command(config, tmp_path, "reasoning_rl.py")[1:])
    assert result.returncode == 1 and "renders no tools" in result.stderr and "Traceback" not in result.stderr, (
        result.stderr
    )


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason=f"benchmark rows are not at {DATA}")
def test_an_evaluation_of_published_sets_that_is_killed_gives_the_same_figures(config, tmp_path, forked):
    config.dataset.path, config.evaluation.splits, config.evaluation.num_task = str(DATA), ["aime24", "math500"], 0
    config.evaluation.num_rollout, config.rollout.max_concurrent, config.reward.num_evaluation = 2, 64, 0
    config.engine.policy.max_model_len, config.rollout.max_response_tokens = 4096, 24
    config.experiment.name = "whole"
    assert forked.run(command(config, tmp_path, "reasoning_eval.py")[1:]).returncode == 0

    config.experiment.name = "killed"
    with subprocess.Popen(command(config, tmp_path, "reasoning_eval.py"), stdout=subprocess.DEVNULL) as first:
        while len(list((tmp_path / "killed/evaluations/parts").glob("step_000000_math500/*.parquet"))) < 3:
            assert first.poll() is None, "it ended before it was killed"
            time.sleep(0.05)
        first.kill()
    assert not (tmp_path / "killed/evaluations/step_000000_math500.parquet").exists()
    assert forked.run(command(config, tmp_path, "reasoning_eval.py")[1:]).returncode == 0
    timed = ("env_s", "phase/", "seconds")
    whole, killed = (
        [{k: v for k, v in r.items() if not k.startswith(timed) and k != "time"} for r in read_jsonl(path)]
        for path in (tmp_path / "whole/metrics.jsonl", tmp_path / "killed/metrics.jsonl")
    )
    assert [r["episodes"] for r in whole] == [60, 1000] and killed == whole
