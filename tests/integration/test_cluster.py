"""The same loop on three Ray nodes: replicas, learner ranks, environment hosts, and what happens when one dies."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from forked_runs import members_after
from launches import title
from replay import assert_trained_as_one_process
from runs_helpers import command, small_config, spread_config

from rlanything.config.schema import Config, DatasetConfig
from rlanything.runs.metrics import read_jsonl
from rlanything.runs.store import read_groups, read_rows

pytestmark = pytest.mark.integration
EVERY_CORE = True


@contextmanager
def cluster_of(num: int) -> Iterator[Any]:
    """A Ray cluster of so many nodes, without accelerators."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
    for _ in range(num - 1):
        cluster.add_node(num_cpus=1, num_gpus=0)
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def three_nodes():
    """Its address."""
    with cluster_of(3) as cluster:
        yield cluster.address


def run(config: Config, folder: Path, address: str, script: str = "alfworld_rl.py") -> subprocess.CompletedProcess:
    """The entry point in a process of its own."""
    env, line = os.environ | {"RAY_ADDRESS": address}, command(config, folder, script)
    return subprocess.run(line, capture_output=True, text=True, timeout=500, check=False, env=env)


@pytest.mark.parametrize("engine", ["transformers", pytest.param("vllm", marks=pytest.mark.slow)])
def test_two_steps_on_three_nodes_train_what_one_process_would(world, three_nodes, tmp_path, engine, monkeypatch):
    config = spread_config(world.games, world.model, tmp_path, "run", engine)
    config.cluster.weight_transfer = "broadcast" if engine == "vllm" else "auto"
    config.dataset.path = ""  # ALFWORLD_DATA, which Ray's nodes do not have
    monkeypatch.setenv("ALFWORLD_DATA", str(world.games))
    result = run(config, tmp_path, three_nodes)
    assert result.returncode == 0, result.stderr
    records = [r for r in read_jsonl(tmp_path / "run/metrics.jsonl") if r["phase"] == "train"]
    assert [r["step"] for r in records] == [1, 2]
    assert all(r["policy/logprob_abs_diff"] < 1e-3 and r["reward/logprob_abs_diff"] < 1e-3 for r in records)
    assert_trained_as_one_process(config, tmp_path / "run")


@pytest.mark.slow
def test_a_domain_of_ones_own_lies_in_the_working_folder_and_trains_on_three_nodes(world, three_nodes, tmp_path):
    shutil.copy(Path(__file__).parents[2] / "examples/sums.py", tmp_path / "my_sums.py")
    config = spread_config(world.games, world.model, tmp_path, "run")
    config.dataset = DatasetConfig(domain="my_sums:Sums", options={"top": 20})
    config.evaluation.splits = ["eval"]
    python, _, *words = command(config, tmp_path)
    line, env = [python, "-m", "rlanything", "train", *words], os.environ | {"RAY_ADDRESS": three_nodes}
    result = subprocess.run(line, capture_output=True, text=True, timeout=500, check=False, env=env, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    rows = read_rows(tmp_path / "run/rollouts/step_000002.parquet")
    assert all(row["turns"][0]["prompt"]["ids"] and row["judgements"] for row in rows)
    assert all("+" in row["description"] for row in rows)


def ahead_config(world, output: Path, name: str) -> Config:
    """Rollouts of the next step while both models learn; three steps, tasks as they are."""
    config = spread_config(world.games, world.model, output, name)
    config.rollout.max_staleness, config.adaptation.enabled, config.experiment.total_step = 1, False, 3
    return config


def played(run: Path, step: int) -> tuple[list[str], set[int]]:
    """The tasks of a step, and the versions of the policy that played them."""
    groups = read_groups(run / f"rollouts/step_{step:06d}.parquet", {})
    turns = [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]
    return [group.task.id for group in groups], {turn.policy_version for turn in turns}


@pytest.mark.slow
def test_with_staleness_the_next_rollouts_are_played_by_the_weights_before_the_update(world, three_nodes, tmp_path):
    config = ahead_config(world, tmp_path, "run")
    result = run(config, tmp_path, three_nodes)
    assert result.returncode == 0, result.stderr
    records = [r for r in read_jsonl(tmp_path / "run/metrics.jsonl") if r["phase"] == "train"]
    assert [r["step"] for r in records] == [1, 2, 3]
    assert [played(tmp_path / "run", step)[1] for step in (1, 2, 3)] == [{0}, {0}, {1}]
    corrected = [abs(r["policy/importance_weight"] - 1) for r in records]
    assert corrected[0] < 1e-4 < min(corrected[1:]) and "policy/mismatch_kl" not in records[1], corrected


@pytest.mark.slow
def test_a_run_with_staleness_that_is_stopped_plays_the_same_tasks_when_it_goes_on(world, three_nodes, tmp_path):
    assert run(ahead_config(world, tmp_path, "whole"), tmp_path, three_nodes).returncode == 0
    config = ahead_config(world, tmp_path, "stopped")
    process = begin(config, tmp_path, three_nodes)
    wait_for(tmp_path / "stopped/checkpoints/step_000001/meta.json", process)
    process.terminate()
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 143 and "stopped; the same command goes on" in said, said
    assert "Traceback" not in said and "never retrieved" not in said, said
    assert run(config, tmp_path, three_nodes).returncode == 0
    for step in (1, 2, 3):
        assert played(tmp_path / "stopped", step)[0] == played(tmp_path / "whole", step)[0], step


@pytest.mark.slow
def test_engines_sleep_while_learners_have_what_they_share(world, three_nodes, tmp_path):
    """On accelerators both would have the same; here the processes are only told so. An engine that sleeps refuses."""
    config = spread_config(world.games, world.model, tmp_path, "run")
    config.training.policy.lora_rank = 2
    line = command(config, tmp_path)
    shared = "from rlanything.plan.placement import Placement; Placement.shares_devices = True"
    code = f"import sys; sys.argv = sys.argv[1:]; {shared}; exec(open(sys.argv[0]).read())"
    env = os.environ | {"RAY_ADDRESS": three_nodes}
    done = subprocess.run([line[0], "-c", code, *line[1:]], capture_output=True, text=True, timeout=400, env=env)
    assert done.returncode == 0, done.stderr
    records = [r for r in read_jsonl(tmp_path / "run/metrics.jsonl") if r["phase"] == "train"]
    assert [r["step"] for r in records] == [1, 2]
    assert all(r["policy/logprob_abs_diff"] < 1e-3 and r["reward/logprob_abs_diff"] < 1e-3 for r in records)


@pytest.mark.slow
def test_nodes_that_do_not_join_are_told_with_what_there_is(world, three_nodes, tmp_path):
    config = spread_config(world.games, world.model, tmp_path, "run")
    config.experiment.num_node, config.cluster.join_timeout_s = 4, 2.0
    result = run(config, tmp_path, three_nodes)
    assert result.returncode == 1 and "Traceback" not in result.stderr, result.stderr
    assert "3 of experiment.num_node=4 nodes" in result.stderr and result.stderr.count("1 CPUs, 0 GPUs") == 3


@pytest.mark.slow
def test_a_head_that_does_not_answer_is_named(world, tmp_path):
    config = spread_config(world.games, world.model, tmp_path, "run")
    result = run(config, tmp_path, "127.0.0.1:9")
    assert result.returncode == 1 and "Traceback" not in result.stderr, result.stderr
    assert "no Ray head answers at RAY_ADDRESS=127.0.0.1:9" in result.stderr


def begin(config: Config, folder: Path, address: str, script: str = "alfworld_rl.py") -> subprocess.Popen:
    """The entry point, while it runs."""
    env, line = os.environ | {"RAY_ADDRESS": address}, command(config, folder, script)
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)


def wait_for(file: Path, process: subprocess.Popen) -> None:
    """Until it is there, while the process runs."""
    deadline = time.monotonic() + 300
    while not file.exists():
        assert process.poll() is None and time.monotonic() < deadline, process.stdout.read()
        time.sleep(0.1)


def actors(name: str, after: Path, process: subprocess.Popen) -> list[psutil.Process]:
    """The processes of a class of Ray actors, once a file is there."""
    wait_for(after, process)
    ours = psutil.Process().children(recursive=True)  # the cluster's nodes are this process's: not another worker's
    found = [actor for actor in ours if title(actor).startswith(f"ray::{name}")]
    assert found, f"no process of {name}"
    return found


@pytest.mark.slow
def test_an_evaluation_on_three_nodes_that_is_killed_goes_on_where_it_stopped(world, three_nodes, tmp_path):
    config = spread_config(world.games, world.model, tmp_path, "eval")
    config.evaluation.num_task = 4
    config.evaluation.num_rollout = config.rollout.max_concurrent = 16  # each task is a part, one after the other
    process = begin(config, tmp_path, three_nodes, "alfworld_eval.py")
    part = tmp_path / "eval/evaluations/parts/step_000000_eval_in_distribution/part_000000.parquet"
    wait_for(part, process)
    process.kill()
    process.communicate(timeout=60)
    written = part.stat().st_mtime_ns
    result = run(config, tmp_path, three_nodes, "alfworld_eval.py")
    assert result.returncode == 0 and "eval_out_of_distribution" in result.stdout, result.stderr
    records = read_jsonl(tmp_path / "eval/metrics.jsonl")
    assert [(r["split"][5:], r["episodes"], r["failures"]) for r in records] == [
        ("in_distribution", 64, 0),
        ("out_of_distribution", 64, 0),
    ]
    kept = tmp_path / "eval/evaluations/step_000000_eval_in_distribution.parquet" / part.name
    assert kept.stat().st_mtime_ns == written and all(r["rm_positive_rate"] is not None for r in records)


@pytest.mark.slow
@pytest.mark.parametrize("actor", ["EngineReplica", "EnvHost"])
def test_a_replica_or_host_that_dies_is_started_anew(world, three_nodes, tmp_path, actor):
    config = spread_config(world.games, world.model, tmp_path, "run")
    config.experiment.total_step = 6
    process = begin(config, tmp_path, three_nodes)
    actors(actor, tmp_path / "run/checkpoints/step_000001/meta.json", process)[0].kill()
    said = process.communicate(timeout=500)[0]
    assert process.returncode == 0, said
    records = [r for r in read_jsonl(tmp_path / "run/metrics.jsonl") if r["phase"] == "train"]
    assert [r["step"] for r in records] == [1, 2, 3, 4, 5, 6]
    restarts = sum(records[-1][f"engine/{role}_restarts"] for role in ("policy", "reward", "rewriter"))
    assert (restarts, records[-1]["env_host_restarts"]) == ((1, 0) if actor == "EngineReplica" else (0, 1))
    assert_trained_as_one_process(config, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_learner_rank_that_dies_in_an_update_ends_the_run_with_one_message_and_it_resumes(
    world, three_nodes, tmp_path, killed
):
    config = spread_config(world.games, world.model, tmp_path, "run")
    config.experiment.total_step, config.training.policy.num_epoch = 4, 200
    process = begin(config, tmp_path, three_nodes)
    ranks = actors("LearnerRank", tmp_path / "run/checkpoints/step_000001/meta.json", process)
    at_work = 0  # tenths of a second in which they were: nothing but an update lasts a second
    while at_work < 10:
        assert process.poll() is None, process.stdout.read()
        at_work = at_work + 1 if all(title(rank) == "ray::LearnerRank.train" for rank in ranks) else 0
        time.sleep(0.1)
    ranks[killed].kill()
    said = process.communicate(timeout=500)[0]
    assert process.returncode == 1 and "learner rank died" in said and "Traceback" not in said, said
    result = run(config, tmp_path, three_nodes)
    assert result.returncode == 0 and "resumed from" in result.stdout, result.stderr
    records = [r for r in read_jsonl(tmp_path / "run/metrics.jsonl") if r["phase"] == "train"]
    assert [r["step"] for r in records] == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 1])
def test_sigterm_ends_a_run_whose_learner_rank_hangs(world, three_nodes, tmp_path, staleness):
    config = ahead_config(world, tmp_path, "run")
    config.experiment.total_step, config.rollout.max_staleness = 1000, staleness
    process = begin(config, tmp_path, three_nodes)
    ranks = actors("LearnerRank", tmp_path / "run/checkpoints/step_000001/meta.json", process)
    ranks[0].suspend()
    time.sleep(20)  # by now the loop waits for it, in an update or elsewhere
    process.terminate()
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 143 and "stopped; the same command goes on" in said, said
    assert "Traceback" not in said and "never retrieved" not in said, said
    assert not psutil.wait_procs(ranks, timeout=60)[1]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["start", "steps"])
def test_sigterm_to_the_whole_group_ends_a_run_that_started_ray_itself(world, tmp_path, moment):
    config = small_config(world.games, world.model, tmp_path, "run")
    config.experiment.total_step, config.engine.policy.num_replica = 1000, 2
    process = subprocess.Popen(
        command(config, tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    if moment == "steps":
        wait_for(tmp_path / "run/checkpoints/step_000001/meta.json", process)
    while not any("gcs_server" in p.name() for p in psutil.Process(process.pid).children(recursive=True)):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)  # the run needs the core
    os.killpg(process.pid, signal.SIGTERM)  # Ray's own processes are of it
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 143 and "stopped; the same command goes on" in said, said
    assert "Traceback" not in said, said
    assert not members_after(process.pid)  # Python's own helper processes end a moment after their parent


@pytest.mark.slow
def test_a_learner_rank_that_hangs_ends_the_run_with_one_message(world, three_nodes, tmp_path):
    config = spread_config(world.games, world.model, tmp_path, "run")
    config.experiment.total_step, config.cluster.rank_timeout_s = 1000, 45.0
    process = begin(config, tmp_path, three_nodes)
    ranks = actors("LearnerRank", tmp_path / "run/checkpoints/step_000001/meta.json", process)
    ranks[0].suspend()
    said = process.communicate(timeout=300)[0]
    assert process.returncode == 1 and "Traceback" not in said, said
    assert "cluster.rank_timeout_s=45 s" in said, said
    assert not psutil.wait_procs(ranks, timeout=60)[1]


@pytest.mark.slow
def test_a_host_that_an_environment_blocks_is_started_anew(world, three_nodes, tmp_path):
    config = spread_config(world.games, world.model, tmp_path, "run")
    config.experiment.total_step, config.rollout.env_timeout_s = 3, 5.0
    process = begin(config, tmp_path, three_nodes)
    blocked = actors("EnvHost", tmp_path / "run/checkpoints/step_000001/meta.json", process)[0]
    blocked.suspend()
    said = process.communicate(timeout=500)[0]
    assert process.returncode == 0, said
    records = [r for r in read_jsonl(tmp_path / "run/metrics.jsonl") if r["phase"] == "train"]
    assert [r["step"] for r in records] == [1, 2, 3] and not blocked.is_running()
    assert records[-1]["env_host_restarts"] == 1


@pytest.mark.slow
def test_a_replica_that_dies_too_often_ends_the_run(world, three_nodes, tmp_path):
    config = spread_config(world.games, world.model, tmp_path, "run")
    config.experiment.total_step, config.cluster.num_restart = 20, 0
    process = begin(config, tmp_path, three_nodes)
    for replica in actors("EngineReplica", tmp_path / "run/checkpoints/step_000001/meta.json", process):
        replica.kill()
    said = process.communicate(timeout=500)[0]
    assert process.returncode == 1 and "Traceback" not in said, said
    assert "engine is dead" in said or "engine are dead" in said or "engine died" in said, said


@pytest.mark.slow
def test_a_node_that_is_lost_for_good_ends_the_run_which_goes_on_where_there_is_another(world, tmp_path):
    config = spread_config(world.games, world.model, tmp_path, "run")
    config.experiment.total_step, config.cluster.restart_timeout_s = 1000, 30.0  # which engines have to start in, too
    config.cluster.num_learner = 1  # of node 0: a rank that dies ends the run at once
    with cluster_of(3) as cluster:
        process = begin(config, tmp_path, cluster.address)
        wait_for(tmp_path / "run/checkpoints/step_000001/meta.json", process)
        cluster.remove_node(next(iter(cluster.worker_nodes)))
        said = process.communicate(timeout=200)[0]
    assert process.returncode == 1 and "Traceback" not in said, said
    assert "was not back within cluster.restart_timeout_s=30 s" in said, said
    newest = int(max((tmp_path / "run/checkpoints").glob("step_*")).name.removeprefix("step_"))
    config.experiment.total_step = newest + 1
    with cluster_of(3) as cluster:
        result = run(config, tmp_path, cluster.address)
    assert result.returncode == 0 and "resumed from" in result.stdout, result.stderr
    records = [r for r in read_jsonl(tmp_path / "run/metrics.jsonl") if r["phase"] == "train"]
    assert [r["step"] for r in records] == list(range(1, newest + 2))


@pytest.mark.slow
def test_what_a_lost_node_held_is_started_on_a_spare_one(world, tmp_path):
    config = spread_config(world.games, world.model, tmp_path, "run")
    config.experiment.total_step, config.cluster.num_learner = 6, 1
    with cluster_of(4) as cluster:
        process = begin(config, tmp_path, cluster.address)
        first = tmp_path / "run/checkpoints/step_000001/meta.json"
        of_ranks = {rank.ppid() for rank in actors("LearnerRank", first, process)}
        used = {p.ppid() for p in actors("EngineReplica", first, process)} - of_ranks
        raylets = {node.all_processes["raylet"][0].process.pid: node for node in cluster.worker_nodes}
        cluster.remove_node(next(node for pid, node in raylets.items() if pid in used))
        said = process.communicate(timeout=400)[0]
    assert process.returncode == 0, said
    records = [r for r in read_jsonl(tmp_path / "run/metrics.jsonl") if r["phase"] == "train"]
    assert [r["step"] for r in records] == [1, 2, 3, 4, 5, 6]
    assert sum(records[-1][f"engine/{role}_restarts"] for role in ("policy", "reward", "rewriter")) >= 1


@pytest.mark.slow
def test_a_disk_that_is_full_at_one_rank_keeps_the_last_checkpoint(world, three_nodes, tmp_path):
    config = spread_config(world.games, world.model, tmp_path, "run")
    config.experiment.total_step = 4
    process = begin(config, tmp_path, three_nodes)
    for rank in actors("LearnerRank", tmp_path / "run/checkpoints/step_000001/meta.json", process)[:1]:
        rank.rlimit(psutil.RLIMIT_FSIZE, (100_000, 100_000))  # as a quota that runs out: Python ignores the signal
    said = process.communicate(timeout=500)[0]
    assert process.returncode == 1 and "could not be written" in said and "Traceback" not in said, said
    assert not list((tmp_path / "run/checkpoints").glob(".*"))
    result = run(config, tmp_path, three_nodes)
    assert result.returncode == 0 and "resumed from" in result.stdout, result.stderr
    records = [r for r in read_jsonl(tmp_path / "run/metrics.jsonl") if r["phase"] == "train"]
    assert [r["step"] for r in records] == [1, 2, 3, 4]
    assert_trained_as_one_process(config, tmp_path / "run")
