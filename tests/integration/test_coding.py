"""The closed loop on coding problems, whole: real engine, learners and sandbox, a tiny model that solves some."""

import os
import subprocess
from pathlib import Path

import psutil
import pytest
from coding_world import make_coding_world
from runs_helpers import command, small_config, spread_config

from rlanything.runs.metrics import read_jsonl
from rlanything.runs.store import read_groups
from rlanything.sandbox.kernel import SUPPORTED

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not SUPPORTED, reason="the sandbox wants Linux"),
]


@pytest.fixture(scope="module")
def coding(tmp_path_factory):
    """Folders of problems and model."""
    return make_coding_world(tmp_path_factory.mktemp("coding"))


def coding_config(make, coding, output: Path):
    """`make` (a helper's configuration) for problems: 4 programs and 3 tests each."""
    problems, model = coding
    config = make(problems, model, output, "run")
    config.dataset.domain, config.dataset.options = "coding", {}
    config.rollout.max_interaction_step, config.rollout.num_rollout_per_trial = 1, 4
    config.rollout.max_response_tokens, config.reward.max_response_tokens = 64, 48
    config.reward.num_evaluation, config.reward.consistency = 3, "tests"
    config.evaluation.splits, config.evaluation.num_task = ["eval"], 6
    config.experiment.total_step = 2
    config.sandbox.num_runner = 2
    return config


def test_policy_reward_model_and_problems_train_together(coding, tmp_path, forked):
    config = coding_config(small_config, coding, tmp_path)
    config.rollout.num_trial = 6
    result = forked.run(command(config, tmp_path, "coding_rl.py")[1:])
    assert result.returncode == 0, result.stderr
    records = [r for r in read_jsonl(tmp_path / "run/metrics.jsonl") if r["phase"] == "train"]
    assert [r["step"] for r in records] == [1, 2]
    assert all(0 < r["success_rate"] < 1 and 0 < r["pass_ratio"] < 1 for r in records), "the model solves some"
    assert all(r["policy/samples"] > 0 and r["reward/samples"] > 0 for r in records)
    assert any(r["test_accuracy"] > 0 for r in records) and all(r["failures"] == 0 for r in records)
    assert all(r["policy/logprob_abs_diff"] < 1e-3 and r["reward/logprob_abs_diff"] < 1e-3 for r in records)
    groups = read_groups(tmp_path / "run/rollouts/step_000001.parquet", {})
    assert all(len(g.shared) == 3 and len(g.trajectories) == 4 for g in groups)
    assert all(sum((e, 0) in j.scores for j in g.judgements) == 3 for g in groups for e in range(4))
    assert "success" in (tmp_path / "run/report.html").read_text()
    result = forked.run(command(config, tmp_path, "coding_eval.py")[1:])
    assert result.returncode == 1 and "holds a training run" in result.stderr
    config.experiment.name, config.evaluation.num_rollout = "eval", 3
    result = forked.run(command(config, tmp_path, "coding_eval.py")[1:])
    assert result.returncode == 0, result.stderr
    [figures] = read_jsonl(tmp_path / "eval/metrics.jsonl")
    assert figures["success_rate"] <= figures["pass@3"] and figures["best_of_3"] <= figures["pass@3"]
    assert all(name in result.stdout for name in ("pass@3", "best of 3", "tests right")), result.stdout


def test_where_programs_cannot_be_isolated_no_model_is_loaded(coding, tmp_path):
    config = coding_config(small_config, coding, tmp_path)
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'  # of the namespace that unshare makes
    line = ["unshare", "-Ur", "sh", "-c", forbid, "sh", *command(config, tmp_path, "coding_rl.py")]
    result = subprocess.run(line, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 1 and "programs cannot be isolated here" in result.stderr, result.stderr
    assert "Traceback" not in result.stderr and not list((tmp_path / "run/logs").glob("engine_*"))


@pytest.mark.slow
def test_on_three_nodes_programs_are_tried_on_every_host(coding, tmp_path):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
    for _ in range(2):
        cluster.add_node(num_cpus=1, num_gpus=0)
    config = coding_config(spread_config, coding, tmp_path)
    line = command(config, tmp_path, "coding_rl.py")
    env = os.environ | {"RAY_ADDRESS": cluster.address}
    result = subprocess.run(line, capture_output=True, text=True, timeout=500, check=False, env=env)
    cluster.shutdown()
    assert result.returncode == 0, result.stderr
    records = [r for r in read_jsonl(tmp_path / "run/metrics.jsonl") if r["phase"] == "train"]
    assert [r["step"] for r in records] == [1, 2] and all(r["failures"] == 0 for r in records)
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if "rlanything.sandbox" in " ".join(p.info["cmdline"] or [])
    ]
