"""The script tells what a run's advantages push; here it reads turns counted by hand."""

import sys
from pathlib import Path

import pushed
import pytest
from builders import group, trajectory

from rlanything.errors import RunError
from rlanything.runs.store import write_groups


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two steps: in the second a wrong end has an advantage above 0."""
    for step, of_end in ((1, -1.0), (2, 0.5)):
        made = group(trajectory(1, [(), ()]), trajectory(-1, [()]))
        [good, right_end], [wrong_end] = (t.turns for t in made.trajectories)
        for turn, label, kind, advantage in (
            (good, 1, "click", 1.0),
            (right_end, 1, "terminate", 2.0),
            (wrong_end, -1, "terminate", of_end),
        ):
            turn.label, turn.kind, turn.advantage = label, kind, advantage
        (tmp_path / "rollouts").mkdir(exist_ok=True)
        write_groups(tmp_path / f"rollouts/step_{step:06d}.parquet", [made], lambda t: t.id, lambda t: "open")
    return tmp_path


def test_turns_are_told_apart_by_action_label_and_outcome(run):
    assert pushed.table(pushed.places(run, (1, 2)), "action") == [
        ("action", "label", "episode", "turns", "mean advantage", "above 0"),
        ("click", "good", "solved", "2", "+1.00", "100%"),
        ("terminate", "bad", "failed", "2", "-0.25", "50%"),
        ("terminate", "good", "solved", "2", "+2.00", "100%"),
    ]


def test_turns_that_did_not_train_are_left_out_and_places_have_their_own_tables(run):
    places = pushed.places(run, (2, 2))
    assert [line[:4] for line in pushed.table(places, "turn")[1:]] == [
        ("1", "bad", "failed", "1"),
        ("1", "good", "solved", "1"),
        ("2", "good", "solved", "1"),
    ]
    assert [line[0] for line in pushed.table(places, "task")[1:]] == ["open", "open"]
    for _, episode, i in places:
        episode.turns[i].advantage = None
    assert len(pushed.table(places, "task")) == 1


def test_the_script_prints_its_tables_and_names_a_folder_without_episodes(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pushed.py", str(run), "--steps", "2", "2"])
    pushed.main()
    said = capsys.readouterr().out
    assert "| terminate | bad | failed | 1 | +0.50 | 100% |" in said and said.count("mean advantage") == 3
    with pytest.raises(RunError, match="has no episodes of the steps 3 to 4 in rollouts/; name a run's folder"):
        pushed.places(run, (3, 4))
