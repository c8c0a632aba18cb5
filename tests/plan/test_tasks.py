"""The tasks that a run trains on: by the policy's own accuracy, and by their number."""

import json
from contextlib import closing

import pytest
from builders import config_of, group, trajectory

from rlanything.domains.registry import make_domain
from rlanything.errors import TaskError
from rlanything.plan.tasks import training_tasks
from rlanything.runs.store import write_groups


@pytest.fixture
def config(tmp_path):
    rows = [{"question": f"{i} + 1?", "answer": i + 1, "task_id": f"t{i}"} for i in range(6)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = config_of("reasoning", tmp_path, grading="text")
    with closing(make_domain(config)) as domain:
        played = []
        for task, solved in zip(domain.tasks("train"), (0, 1, 2, 4, 3), strict=False):  # t5 was not played
            played.append(group(*(trajectory(1 if i < solved else -1, [()]) for i in range(4)), task=task))
            for t in played[-1].trajectories:
                t.task_id = task.id
        write_groups(tmp_path / "rates.parquet", played, domain.describe, domain.kind)
    config.dataset.accuracy = str(tmp_path / "rates.parquet")
    return config


def chosen(config, said=None):
    with closing(make_domain(config)) as domain:
        return [task.id for task in training_tasks(config, domain, ([] if said is None else said).append)]


def test_tasks_that_are_always_or_never_solved_do_not_train(config):
    said = []
    assert chosen(config, said) == ["t1", "t2", "t4"]
    [told] = said
    assert "of 6 tasks 3 train, 2 are outside of dataset.accuracy_band, 1 were not played" in told
    config.dataset.accuracy_band = [0.0, 0.25]
    assert chosen(config) == ["t0", "t1"]
    config.dataset.accuracy_band, config.dataset.num_task = [0.01, 0.99], 2
    assert len(chosen(config)) == 2 and set(chosen(config)) <= {"t1", "t2", "t4"}
    config.dataset.accuracy, config.dataset.num_task = "", 0
    assert len(chosen(config)) == 6


def test_a_file_that_is_no_evaluation_and_a_band_without_tasks_are_named(config, tmp_path):
    config.dataset.accuracy_band = [0.3, 0.4]
    with pytest.raises(TaskError, match="of its 5 tasks 5 are of the split train, and none has a success rate"):
        chosen(config)
    for path in (tmp_path / "train.jsonl", tmp_path / "none.parquet"):
        config.dataset.accuracy = str(path)
        with pytest.raises(TaskError, match="no file of an evaluation"):
            chosen(config)
