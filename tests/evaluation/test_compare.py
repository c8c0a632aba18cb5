"""Two runs compared by task: on what both played, with an interval of the difference."""

import pytest
from builders import group, trajectory

from rlanything.__main__ import main
from rlanything.errors import RunError
from rlanything.evaluation.compare import compare, evaluations
from rlanything.evaluation.figures import paired_interval
from rlanything.runs.progress import Progress
from rlanything.runs.store import success_rates, write_groups
from rlanything.types import Status, Task


def write(run, step, outcomes, split="seen"):
    """An evaluation of tasks by their ids: {"a": [1, -1]}."""
    made = [
        group(*(trajectory(o, [()]) for o in played), task=Task(id=id, payload={})) for id, played in outcomes.items()
    ]
    (run / "evaluations").mkdir(parents=True, exist_ok=True)
    for g in made:
        for t in g.trajectories:
            t.task_id = g.task.id
    write_groups(run / f"evaluations/step_{step:06d}_{split}.parquet", made, lambda t: t.id, lambda t: "any")


def test_the_last_evaluation_of_each_split_counts_on_the_tasks_of_both(tmp_path, capsys):
    first, second = tmp_path / "a", tmp_path / "b"
    write(first, 0, {"x": [1, 1], "y": [-1, -1], "z": [-1, -1]})
    write(second, 0, {"x": [-1, -1], "y": [-1, -1]})
    write(second, 10, {"x": [1, 1], "y": [1, -1], "w": [1, 1]})
    write(second, 10, {"x": [1]}, split="other_split")
    assert {split: step for split, (step, _) in evaluations(second).items()} == {"seen": 10, "other_split": 10}
    compare(first, second, Progress())
    out = capsys.readouterr().out
    assert "50.0%" in out and "75.0%" in out and "+25.0%" in out and "0, 10" in out and "other_split" not in out


def test_broken_episodes_are_no_failures_of_the_policy(tmp_path):
    played = group(trajectory(1, [()]), trajectory(-1, [()], status=Status.ENV_ERROR), task=Task(id="x", payload={}))
    path = tmp_path / "e.parquet"
    write_groups(path, [played], lambda t: t.id, lambda t: "any")
    assert list(success_rates(path).values()) == [1.0]


def test_the_interval_of_equal_differences_is_a_point_and_of_mixed_ones_is_wide():
    assert paired_interval([0.25] * 8) == (0.25, 0.25)
    low, high = paired_interval([1.0, -1.0] * 8)
    assert low < -0.3 and high > 0.3 and paired_interval([]) != paired_interval([0.0])


def test_runs_without_a_common_task_and_words_that_are_no_runs_are_refused(tmp_path, capsys):
    write(tmp_path / "a", 0, {"x": [1]})
    write(tmp_path / "b", 0, {"y": [1]})
    with pytest.raises(RunError, match="no split with tasks that both runs evaluated"):
        compare(tmp_path / "a", tmp_path / "b", Progress())
    with pytest.raises(RunError, match="holds no evaluations"):
        compare(tmp_path / "a", tmp_path / "c", Progress())
    (tmp_path / "a/evaluations/step_000009_seen.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(RunError, match="step_000009_seen.parquet: no file of an evaluation, or damaged"):
        compare(tmp_path / "a", tmp_path / "b", Progress())
    with pytest.raises(SystemExit):
        main(["eval", "--compare", str(tmp_path)])
    assert "expected the folders of two runs" in capsys.readouterr().err
