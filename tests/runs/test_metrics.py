"""Figures reach metrics.jsonl and every sink, each split under its own name."""

import os
import subprocess
import sys
import time

import pytest

from rlanything.config.schema import Config
from rlanything.errors import RunError
from rlanything.runs import sinks
from rlanything.runs.folder import RunFolder
from rlanything.runs.metrics import Metrics, append_jsonl, drop_after, read_jsonl
from rlanything.runs.sinks import check_sinks


def metrics_of(folder, *sinks):
    config = Config()
    config.experiment.output_dir, config.experiment.name = str(folder.parent), folder.name
    config.experiment.sinks = list(sinks)
    return Metrics(RunFolder(config))


def write_three(folder, *sinks):
    metrics = metrics_of(folder, *sinks)
    metrics.write(1, "train", {"success_rate": 0.5, "loss": float("nan")})
    metrics.write(1, "eval", {"split": "seen", "success_rate": 0.25})
    metrics.write(1, "eval", {"split": "unseen", "success_rate": 0.125})
    metrics.close()


EXPECTED = {"train/success_rate": 0.5, "eval/seen/success_rate": 0.25, "eval/unseen/success_rate": 0.125}


def test_nan_becomes_null_in_the_jsonl(tmp_path):
    write_three(tmp_path)
    assert read_jsonl(tmp_path / "metrics.jsonl")[0] == {"step": 1, "phase": "train", "success_rate": 0.5, "loss": None}


def test_a_line_that_was_cut_within_a_character_is_left_out(tmp_path):
    path = tmp_path / "tasks.jsonl"
    append_jsonl(path, [{"step": 1, "statement": "n ≤ 5"}, {"step": 2, "statement": "n ≤ 6"}])
    path.write_bytes(path.read_bytes().rsplit(" ≤ 6".encode())[0] + " ≤".encode()[:2])
    drop_after(path, 1)
    assert read_jsonl(path) == [{"step": 1, "statement": "n ≤ 5"}]


def test_tensorboard_gets_every_figure(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_three(tmp_path, "tensorboard")
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]} == EXPECTED


def test_wandb_gets_every_figure_and_a_resumed_run_keeps_its_id(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    write_three(tmp_path, "wandb")
    first = (tmp_path / "wandb_id").read_text()
    write_three(tmp_path, "wandb")
    assert (tmp_path / "wandb_id").read_text() == first
    deadline = time.monotonic() + 20  # its own process writes them, on a busy machine a moment after the run's end
    sent = [*EXPECTED, "step"]  # figures are drawn over a step of their own: a resumed run repeats some
    while not all(name.encode() in log for name in sent for log in wandb_logs(tmp_path)):
        assert time.monotonic() < deadline, wandb_logs(tmp_path)
        time.sleep(0.1)
    assert len(wandb_logs(tmp_path)) == 2


def wandb_logs(folder):
    """What Weights & Biases would send, of each run."""
    return [path.read_bytes() for path in folder.glob("wandb/offline-run-*/*.wandb")]


@pytest.mark.parametrize("name", ["wandb", "trackio", "tensorboard"])
def test_a_sink_that_is_not_installed_is_named_before_anything_is_loaded(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, None)
    with pytest.raises(RunError, match=f"'{name}', which is not installed: pip install {name}"):
        check_sinks([name])


def test_wandb_without_a_key_is_named_before_anything_is_loaded(tmp_path):
    code = "from rlanything.runs.sinks import check_sinks\ncheck_sinks(['wandb'])\nprint('taken')\n"
    env = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")} | {"HOME": str(tmp_path)}
    asked = [sys.executable, "-c", code]
    without = subprocess.run(asked, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    assert "finds no key: set WANDB_API_KEY" in without.stderr and without.returncode
    for extra in ({"WANDB_MODE": "offline"}, {"WANDB_API_KEY": "0" * 40}):
        taken = subprocess.run(asked, env=env | extra, capture_output=True, text=True, timeout=60)
        assert taken.stdout == "taken\n", taken.stderr
    for extra in ({"WANDB_MODE": "of"}, {"WANDB_PROJECT": "a/b"}, {"WANDB_API_KEY": "key "}):
        wrong = subprocess.run(asked, env=env | extra, capture_output=True, text=True, timeout=60)
        assert "RunError: experiment.sinks: 'wandb' has wrong settings" in wrong.stderr
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "settings").write_text("[default]\nmode = offline\n")
    taken = subprocess.run(asked, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert taken.stdout == "taken\n", taken.stderr


def test_a_resumed_run_has_one_value_a_step_in_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for begun, value in ((1, 0.25), (2, 0.75)):
        metrics = metrics_of(tmp_path, "tensorboard")
        for step in range(begun, 4):
            metrics.write(step, "train", {"success_rate": value})
        metrics.close()
        time.sleep(1.1)  # event files are ordered by the second in their names
    shown = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("train/success_rate")
    assert [(event.step, event.value) for event in shown] == [(1, 0.25), (2, 0.75), (3, 0.75)]


def test_a_sink_that_cannot_start_is_named_and_the_others_are_finished(tmp_path, monkeypatch):
    def refused(**_):
        raise ConnectionError("no route to its server")

    monkeypatch.setattr("wandb.init", refused)
    with pytest.raises(RunError, match=r"'wandb' cannot start: .*no route.*WANDB_MODE=offline needs no network"):
        metrics_of(tmp_path, "tensorboard", "wandb")


def test_a_sink_that_fails_is_told_once_and_ends_no_run(tmp_path, monkeypatch, caplog):
    class Failing:
        def __init__(self, folder):
            pass

        def log(self, values, step):
            raise OSError("its server is gone")

        def finish(self):
            raise AssertionError("it was left out")

    monkeypatch.setitem(sinks.SINKS, "trackio", Failing)
    write_three(tmp_path, "trackio")
    assert len(read_jsonl(tmp_path / "metrics.jsonl")) == 3
    assert [record.getMessage().count("'trackio' fails") for record in caplog.records] == [1]
