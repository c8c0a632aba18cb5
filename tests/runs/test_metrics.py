"""Figures reach metrics.jsonl and every sink, each split under its own name."""

import os
import subprocess
import sys
import time

import pytest

from rlanything.config.schema import Config
from rlanything.errors import RunError
from rlanything.runs.folder import RunFolder
from rlanything.runs.metrics import Metrics, append_jsonl, check_sinks, drop_after, read_jsonl


def write_three(folder, *sinks):
    config = Config()
    config.experiment.output_dir, config.experiment.name = str(folder.parent), folder.name
    config.experiment.sinks = list(sinks)
    metrics = Metrics(RunFolder(config))
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
    while not all(name.encode() in log for name in EXPECTED for log in wandb_logs(tmp_path)):
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
    code = "from rlanything.runs.metrics import check_sinks\ncheck_sinks(['wandb'])\nprint('taken')\n"
    env = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")} | {"HOME": str(tmp_path)}
    asked = [sys.executable, "-c", code]
    without = subprocess.run(asked, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    assert "finds no key: set WANDB_API_KEY" in without.stderr and without.returncode
    for extra in ({"WANDB_MODE": "offline"}, {"WANDB_API_KEY": "0" * 40}):
        taken = subprocess.run(asked, env=env | extra, capture_output=True, text=True, timeout=60)
        assert taken.stdout == "taken\n", taken.stderr
