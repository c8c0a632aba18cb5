"""The windows that the theorems' figures are made of, on groups counted by hand."""

import sys
from dataclasses import replace

import pytest
import theorems
from builders import group, trajectory
from report_runs import write_step

from rlanything.config.schema import Config
from rlanything.runs.folder import RunFolder
from rlanything.types import Direction, Task

BAND = (0.25, 0.75)


def labelled(made, *labels):
    for t, of_turns in zip(made.trajectories, labels, strict=True):
        for turn, label in zip(t.turns, of_turns, strict=True):
            turn.label = label
    return made


def test_a_window_counts_votes_pairs_and_groups_by_hand():
    window = theorems.Window(step=1)
    # Good steps with the votes (1, 1) and (1, -1), bad ones with (-1, None) and (1, -1).
    window.add(
        labelled(group(trajectory(1, [[1, 1], [-1, None]]), trajectory(-1, [[1, -1], [1, -1]])), (1, -1), (1, -1)), BAND
    )
    assert (sum(window.good), len(window.good), sum(window.bad), len(window.bad)) == (3, 4, 2, 3)
    assert sum(window.ordered) == 3 and len(window.ordered) == 4  # (1, -1) does not come before (1, -1)
    assert window.votes == 2 and window.trained == window.original == [0.5] and window.variant == []
    assert window.mu == pytest.approx(3 / 4 + 2 / 3)
    variant = replace(Task(id="v", payload={}), direction=Direction.EASIER)
    window.add(group(trajectory(1, [()]), task=variant), BAND)
    assert window.trained == [0.5] and window.variant == [1.0]  # 1.0 is outside the band


def test_a_line_explains_a_line_and_nothing_of_what_has_no_spread():
    assert theorems.r_squared([1, 2, 3, 4]) == pytest.approx(1)
    assert theorems.r_squared([0, 1, 0]) == pytest.approx(0)
    assert theorems.r_squared([2, 2, 2]) != theorems.r_squared([2, 2, 2])  # nan


def test_the_script_prints_a_run_and_draws_it(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    config = Config()
    config.experiment.name, config.experiment.output_dir = "made", str(tmp_path)
    folder = RunFolder(config)
    (folder.path / "rollouts").mkdir(parents=True)
    (folder.path / "config.yaml").write_text("reward: {band: [0.0, 1.0]}\n")
    for step in range(1, 6):
        made = labelled(group(trajectory(1, [[1, 1], [-1, 1]]), trajectory(-1, [[-1, -1]])), (1, -1), (-1,))
        write_step(folder, step, [made], **{"tasks/accepted": float(step)})
    monkeypatch.setattr(
        sys, "argv", ["theorems.py", str(folder.path), "--window", "2", "--out", str(tmp_path / "a.svg")]
    )
    theorems.main()
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "made:" and [line.split("|")[1].strip() for line in said[3:6]] == ["1.5", "3.5", "5"]
    assert "| 100% | 75% | 1.75 |" in said[3]
    assert "<svg" in (tmp_path / "a.svg").read_text()
