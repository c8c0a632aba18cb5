"""A real pretrained model, its own tokenizer and chat template, through one whole step of the loop on both engines."""

import itertools
import json
import sys
from pathlib import Path
from subprocess import run

import pytest
from reasoning_problems import GENERATED_REASONING
from reasoning_problems.generator import generate
from runs_helpers import small_config

from rlanything.config.schema import DatasetConfig, EngineConfig, LearnerConfig, ModelConfig
from rlanything.config.sft import SftConfig
from rlanything.domains.alfworld.domain import AlfworldJudging
from rlanything.runs.metrics import read_jsonl
from rlanything.runs.progress import Progress
from rlanything.runs.store import read_rows
from rlanything.sft import warm_start
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
    monkeypatch.setattr(AlfworldJudging, "parse", lambda self, text, turn: (next(scores), ""))
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


def test_smollm2_learns_to_call_the_tool_from_synthetic_traces_and_goes_on_by_reinforcement(smollm2, tmp_path):
    data = tmp_path / "problems"
    data.mkdir()
    for split, seed in (("train", 1), ("held_out", 2)):
        (data / f"{split}.jsonl").write_text("\n".join(map(json.dumps, generate(60, seed))))
    options = {"grading": "text", "call_s": 2.0, "call_share": 1.0}  # few updates must show what a call is
    dataset = DatasetConfig(domain=GENERATED_REASONING, path=str(data), prompt="compact", options=options)
    engine = EngineConfig(kind="transformers", dtype="float32", max_model_len=512, max_num_seqs=16)
    training = LearnerConfig(lr=1e-4, warmup_update=5, dtype="float32", micro_batch_tokens=2048)
    warm = SftConfig(
        role="policy", model=ModelConfig(path=str(smollm2)), output=str(tmp_path / "warm"), dataset=dataset
    )
    warm.measure_split, warm.num_measure, warm.max_interaction_step, warm.max_response_tokens = "held_out", 8, 5, 64
    warm.batch, warm.max_update, warm.measure_every = 8, 24, 24
    warm.engine, warm.training = engine, training
    warm_start(warm, Progress())

    config = small_config(data, tmp_path / "warm", tmp_path, "reasoning")
    config.dataset, config.experiment.total_step, config.experiment.num_thread = dataset, 2, 2
    config.rollout.num_trial, config.rollout.num_rollout_per_trial = 4, 4
    config.rollout.max_interaction_step, config.rollout.max_response_tokens = 5, 64
    config.reward.num_evaluation, config.algorithm.step_weight, config.algorithm.advantage = 0, 0.0, "trajectory"
    # So small a model may solve none of a step's problems; then the reward of calls tells its episodes apart.
    config.algorithm.call_bonus, config.algorithm.band = 0.1, [0.0, 1.0]
    config.adaptation.enabled, config.evaluation.splits = False, []
    config.engine.policy, config.training.policy = engine, training.model_copy(update={"lr": 1e-5, "num_update": 1})
    train(config)
    records = read_jsonl(tmp_path / "reasoning/metrics.jsonl")
    assert [r["step"] for r in records] == [1, 2] and all(r["policy/logprob_abs_diff"] < 1e-3 for r in records)
    assert all(r["action/call"] > 0.2 and r["verdict/ok"] > 0.1 for r in records), "it has learned to call"
    turns = [t for row in read_rows(tmp_path / "reasoning/rollouts/step_000002.parquet") for t in row["turns"]]
    assert any(t["text"].startswith("<tool_call>") and t["observation"].isdigit() for t in turns)
