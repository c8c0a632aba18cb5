"""The closed loop whole, with real engines and learners: exact resume, faults, and nothing lost."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from forked_runs import members_after
from runs_helpers import NUM_DEVICE, broken, command, figures, small_config
from safetensors.torch import load_file

from rlanything.runs.folder import RunFolder
from rlanything.runs.metrics import read_jsonl
from rlanything.runs.store import read_rows
from rlanything.train import train

pytestmark = pytest.mark.integration
exact = pytest.mark.skipif(NUM_DEVICE > 0, reason="a GPU's sums differ from run to run")


def learned(run: Path, step: int) -> dict[str, torch.Tensor]:
    """All weights of both models at a checkpoint."""
    folder = run / "checkpoints" / f"step_{step:06d}"
    return {
        f"{role}/{k}": v
        for role in ("policy", "reward")
        for k, v in load_file(folder / role / "hf/model.safetensors").items()
    }


@pytest.fixture(scope="module")
def whole(world, tmp_path_factory):
    """A run of 4 steps without interruption."""
    output = tmp_path_factory.mktemp("whole")
    train(small_config(world.games, world.model, output, "run"))
    return output / "run"


def test_a_run_writes_all_that_it_promises(whole):
    records = read_jsonl(whole / "metrics.jsonl")
    assert [r["step"] for r in records if r["phase"] == "train"] == [1, 2, 3, 4]
    assert {r["split"] for r in records if r["phase"] == "eval"} == {"eval_in_distribution", "eval_out_of_distribution"}
    assert (whole / "report.html").stat().st_size > 10_000
    for step in range(1, 5):
        rows = read_rows(whole / f"rollouts/step_{step:06d}.parquet")
        assert len(rows) >= 4
        for row in rows:
            assert all(len(turn["response_ids"]) == len(turn["logprobs"]) for turn in row["turns"])
            judged = [(score["episode"], score["turn"]) for j in row["judgements"] for score in j["scores"]]
            assert sorted(judged) == sorted((row["index"], t) for t in range(len(row["turns"])) for _ in range(2))
    last = records[[r["step"] for r in records].index(4)]
    assert all(r["rm_unparsable_rate"] < 0.5 for r in records if r["phase"] == "train"), "the judge must judge"
    assert last["policy/num_update"] == 2 and last["policy/logprob_abs_diff"] < 1e-3
    promised = {"success_rate", "mean_reward", "rm_p_plus", "rm_p_minus", "rm_mu", "rm_bound", "rm_outcome_agreement"}
    promised |= {"rm_process_accuracy", "rm_unparsable_rate", "failures", "retries", "groups_too_small"}
    promised |= {"tasks/accepted", "tasks/dropped", "tasks/rejected", "tasks/pending", "peak_memory_gb"}
    promised |= {f"seconds/{phase}" for phase in ("rollout", "rewrite", "update policy", "update reward")}
    promised |= {f"engine/{role}_tokens_per_s" for role in ("policy", "reward", "rewriter")}
    promised |= {
        f"{role}/{k}" for role in ("policy", "reward") for k in ("packing_ratio", "mismatch_kl", "groups_dropped")
    }
    assert not promised - last.keys()
    assert json.loads((whole / "checkpoints/step_000004/meta.json").read_text())["step"] == 4


def test_every_metric_of_a_run_is_described(whole):
    page = (Path(__file__).parents[2] / "docs/metrics.md").read_text(encoding="utf-8")
    names = {
        name
        for row in page.splitlines()
        if row.startswith("| `")
        for name in re.findall("`([^`]+)`", row.split(" | ")[0])
    }
    described = [re.sub("[A-Z]+", "[^/]+", name) for name in names]
    found = {name for record in read_jsonl(whole / "metrics.jsonl") for name in record}
    assert not [name for name in found if not any(re.fullmatch(one, name) for one in described)]


def test_updates_change_both_models(whole, world):
    start, end = load_file(world.model / "model.safetensors"), learned(whole, 4)
    for role in ("policy", "reward"):
        assert any(not torch.equal(start[k], end[f"{role}/{k}"]) for k in start), role


@exact
def test_two_steps_then_two_resumed_equal_four_bit_for_bit(whole, world, tmp_path):
    config = small_config(world.games, world.model, tmp_path, "run")
    process = subprocess.Popen(command(config, tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_for(tmp_path / "run/checkpoints/step_000002/meta.json", process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    train(config)
    ours, theirs = learned(tmp_path / "run", 4), learned(whole, 4)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)
    assert figures(tmp_path / "run") == figures(whole)


def test_adapters_train_travel_and_resume_in_the_loop(world, tmp_path, capsys):
    config = small_config(world.games, world.model, tmp_path, "lora")
    config.training.policy.lora_rank = config.training.reward.lora_rank = 4
    config.training.policy.kl_beta = 0.1
    config.experiment.total_step = 1
    train(config)
    config.experiment.total_step = 2
    train(config)
    records = [r for r in read_jsonl(tmp_path / "lora/metrics.jsonl") if r["phase"] == "train"]
    assert [r["step"] for r in records] == [1, 2]
    assert all(r["policy/logprob_abs_diff"] < 1e-3 and r["reward/logprob_abs_diff"] < 1e-3 for r in records)
    start = load_file(world.model / "model.safetensors")
    exported = load_file(tmp_path / "lora/checkpoints/step_000002/policy/hf/model.safetensors")
    moved = {name for name, tensor in start.items() if not torch.equal(tensor, exported[name])}
    assert set(exported) == set(start) and moved and all("proj" in name for name in moved)
    before = (tmp_path / "lora/metrics.jsonl").read_text()
    train(config)  # it is complete
    assert "2 steps are done, experiment.total_step=2: nothing is left to train" in capsys.readouterr().out
    assert (tmp_path / "lora/metrics.jsonl").read_text() == before


@pytest.mark.slow
@exact
def test_a_judge_in_a_process_of_its_own_repeats_bit_for_bit(world, tmp_path):
    runs = []
    for name in ("first", "second"):
        config = small_config(world.games, world.model, tmp_path, name)
        config.engine.reward.own_process = True
        config.experiment.num_thread, config.experiment.total_step = 2, 2
        train(config)
        runs.append(tmp_path / name)
    first, second = (learned(run, 2) for run in runs)
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert figures(runs[0]) == figures(runs[1])


def wait_for(path: Path, process: subprocess.Popen, limit_s: float = 240) -> None:
    started = time.monotonic()
    while not path.exists():
        assert process.poll() is None, process.stdout.read().decode()
        assert time.monotonic() - started < limit_s, f"{path} did not appear"
        time.sleep(0.02)


@exact
@pytest.mark.slow
@pytest.mark.parametrize("phase", ["collect", "adapt", "update", "record", "save"])
def test_a_kill_in_any_phase_loses_only_the_step_in_flight(whole, world, tmp_path, phase):
    config = small_config(world.games, world.model, tmp_path, "run")
    died = broken(command(config, tmp_path), phase, 3)
    assert died.returncode == -signal.SIGKILL, died.stderr
    train(config)
    ours, theirs = learned(tmp_path / "run", 4), learned(whole, 4)
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)
    assert figures(tmp_path / "run") == figures(whole)


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)]
)
def test_ctrl_c_and_sigterm_say_one_line_and_leave_no_process(world, tmp_path, number, code):
    config = small_config(world.games, world.model, tmp_path, "run")
    config.engine.reward.own_process = True
    config.experiment.total_step = 1000
    process = subprocess.Popen(
        command(config, tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    wait_for(tmp_path / "run/checkpoints/step_000001/meta.json", process)
    os.killpg(process.pid, number)  # as a terminal and most schedulers do: the judge's process is told too
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == code and "goes on from the last checkpoint" in output, output
    assert "Traceback" not in output and "never retrieved" not in output, output
    assert not members_after(process.pid)  # Python's own helper processes end a moment after their parent


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["update", "record", "save"])
def test_sigterm_to_the_group_ends_a_phase_without_an_event_loop_at_once(world, tmp_path, phase):
    config = small_config(world.games, world.model, tmp_path, "run")
    config.engine.reward.own_process = True  # it is of the group too
    code = (
        "import pathlib, sys, time\n"
        "from rlanything.loop import Loop\n"
        "def slow(self, *args, **kwargs):\n"
        f"    pathlib.Path({str(tmp_path / 'there')!r}).touch()\n"
        "    time.sleep(600)\n"
        f"Loop.{phase} = slow\n"
        "sys.argv = sys.argv[1:]\n"
        "exec(open(sys.argv[0]).read())\n"
    )
    line = command(config, tmp_path)
    process = subprocess.Popen(
        [line[0], "-c", code, *line[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    wait_for(tmp_path / "there", process)
    os.killpg(process.pid, signal.SIGTERM)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 143 and "goes on from the last checkpoint" in output, output
    assert "Traceback" not in output and "error" not in output, output


def test_two_processes_never_write_one_run(world, tmp_path, forked):
    config = small_config(world.games, world.model, tmp_path, "run")
    with RunFolder(config).open():  # as this process's training would
        second = forked.run(command(config, tmp_path)[1:])
    assert second.returncode == 1 and "another process is writing this run" in second.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset.path": "nowhere"}, "no games of split 'train'"),
        ({"model.policy.path": "./nowhere"}, "is no folder"),
        ({"experiment.num_node": 2}, "RAY_ADDRESS names no Ray cluster"),
        ({"rollout.max_staleness": 1}, "one process cannot make tokens while it learns"),
        pytest.param(
            {"experiment.num_device": 1000, "training.policy.zero_stage": 1, "training.reward.zero_stage": 1},
            "accelerators on this machine; look at its driver",
            marks=pytest.mark.slow,
        ),
        ({"evaluation.splits": "[eval]"}, "no games of split 'eval'"),
        ({"rollout.num_trail": 2}, "known keys there"),
    ],
)
def test_a_bad_configuration_exits_1_with_one_line(world, tmp_path, forked, change, message):
    config = small_config(world.games, world.model, tmp_path, "run")
    config.experiment.num_device = 0
    line = command(config, tmp_path)
    result = forked.run([*line[1:], *(f"{k}={v}" for k, v in change.items())])
    assert result.returncode == 1 and message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_a_run_of_other_rules_is_not_mixed_into_the_folder(whole, world, forked):
    config = small_config(world.games, world.model, whole.parent, "run")
    config.algorithm.step_weight = 0.5
    result = forked.run(command(config, whole.parent)[1:])
    assert result.returncode == 1 and "algorithm.step_weight=1.0, now 0.5" in " ".join(result.stderr.split())


@pytest.mark.slow
def test_the_same_loop_runs_on_vllm_and_keeps_its_log_off_the_screen(world, tmp_path):
    config = small_config(world.games, world.model, tmp_path, "run", engine="vllm")
    config.adaptation.enabled = False  # an engine less
    config.experiment.total_step = 2
    result = subprocess.run(command(config, tmp_path), capture_output=True, text=True, timeout=400, check=False)
    assert result.returncode == 0, result.stderr
    records = [r for r in read_jsonl(tmp_path / "run/metrics.jsonl") if r["phase"] == "train"]
    assert [r["step"] for r in records] == [1, 2]
    # After an update too, the engine samples from the learner's weights: same numbers for the same tokens.
    assert all(r["policy/logprob_abs_diff"] < 1e-3 and r["reward/logprob_abs_diff"] < 1e-3 for r in records)
    [log] = (tmp_path / "run/logs").glob("engine_policy*.log")
    assert "INFO" not in result.stdout + result.stderr and "vllm" in log.read_text()


def test_a_reward_model_that_is_not_trained_judges_as_it_is(world, tmp_path):
    config = small_config(world.games, world.model, tmp_path, "frozen")
    config.experiment.total_step, config.reward.trained = 1, False
    train(config)
    run = tmp_path / "frozen"
    [step] = [r for r in read_jsonl(run / "metrics.jsonl") if r["phase"] == "train"]
    assert step["policy/num_update"] and step["rm_unparsable_rate"] < 0.5
    assert not {key for key in step if key.startswith("reward/")} and "seconds/update reward" not in step
    assert not (run / "checkpoints/step_000001/reward").exists()
    assert all(
        turn["signal"] is not None for row in read_rows(run / "rollouts/step_000001.parquet") for turn in row["turns"]
    )
