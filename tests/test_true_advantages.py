"""Correlations with measured advantages, and the script that prints them."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import true_advantages
from builders import group, trajectory
from runs_helpers import small_config

from rlanything.config.load import to_yaml
from rlanything.config.schema import ModelConfig
from rlanything.engines.chat import Chat


def test_ranks_of_equal_values_are_their_mean_and_correlations_those_by_hand():
    assert true_advantages.ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [2.5, 0, 2.5, 1]
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 4.0, 9.0, 16.0])
    assert true_advantages.spearman(x, y) == pytest.approx(1)
    assert true_advantages.spearman(x, np.array([2.0, 1.0, 4.0, 3.0])) == pytest.approx(0.6)  # 1 - 6 * 4 / (4 * 15)
    assert np.isnan(true_advantages.spearman(x, np.ones(4)))


def test_a_signal_is_measured_on_the_turns_that_have_it_and_noise_lowers_what_can_be_reached():
    rng, measured = np.random.default_rng(0), []

    def counts(chance):
        return tuple(
            Counter({True: solved, False: 32 - solved}) for solved in rng.binomial(32, chance, size=2).tolist()
        )

    for i in range(400):
        turn = trajectory(1, [()]).turns[0]
        before, after = counts(0.5), counts(0.5 + (i % 5 - 2) / 8)
        measured.append(true_advantages.Measured(task=f"q{i % 8}", turn=turn, place=(i, 0), before=before, after=after))
    known = {(m.task, m.place): float(m.place[0] % 5) for m in measured[:200]}
    lines = true_advantages.table(measured, [("known", known), ("silent", {})])
    reached, found = (float(line.split("|")[2].split()[0]) for line in lines[2:])  # correlations
    assert len(lines) == 4 and lines[3].endswith("| 200 |")
    assert 0.8 < reached < 0.97 and found == pytest.approx(reached, abs=0.06)


def test_the_probability_of_a_vote_is_that_of_its_box_and_of_no_remark(world):
    chat = Chat(ModelConfig(path=str(world.model)))
    ids = chat.response_ids("so \\boxed{-1}")
    start = next(i for i in range(len(ids)) if len(chat.response_text(ids[: i + 1])) > 3)
    made = group(trajectory(1, [[-1]]))
    [vote] = made.judgements
    vote.text, vote.response_ids = chat.response_text(ids), ids
    vote.logprobs = [-5.0 if i < start else np.log(0.8) if i == start else 0.0 for i in range(len(ids))]
    assert true_advantages.probabilities([made], chat) == {("q", (0, 0)): pytest.approx(0.2)}
    for due in ("print(3)", "\\boxed{184}"):  # of a judge whose vote is a comparison
        vote.text = due
        assert true_advantages.probabilities([made], chat) == {}


@pytest.mark.slow
@pytest.mark.integration
def test_the_script_measures_a_run_and_keeps_every_turn(world, tmp_path):
    config = small_config(world.games, world.model, tmp_path, "measured")
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config))
    script = Path(true_advantages.__file__)
    line = [sys.executable, str(script), "--tasks", "2", "--continuations", "2", f"config={file}"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| a perfect one, measured as well |" in done.stdout and "steps labelled -1:" in done.stdout
    rows = [json.loads(row) for row in (tmp_path / "measured/turns.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 2 * 3 and all("the labels" in row["signals"] for row in rows)
