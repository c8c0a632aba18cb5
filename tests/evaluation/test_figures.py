"""What an evaluation says of many episodes a task."""

import pytest
from builders import group, trajectory

from rlanything.evaluation.figures import _of_many
from rlanything.types import Evaluation


def judged_by_tests(outcomes, scores):
    g = group(*(trajectory(outcome, [()]) for outcome in outcomes))
    g.tests = [Evaluation([1], [2], [-0.5], "test", 1) for _ in scores[0]]
    for t, row in zip(g.trajectories, scores, strict=True):
        t.turns[0].test_scores = list(row)
    return g


def test_best_of_n_is_the_program_that_passes_most_generated_tests():
    picked = judged_by_tests([-1, 1, -1], [(1, -1), (1, 1), (-1, None)])
    missed = judged_by_tests([1, -1, -1], [(-1, -1), (1, 1), (-1, -1)])
    tied = judged_by_tests([1, -1, 1], [(1, 1), (1, 1), (-1, -1)])
    assert _of_many([picked, missed, tied]) == {"pass@3": 1.0, "best_of_3": pytest.approx(0.5)}
    assert _of_many([judged_by_tests([-1, -1], [(1,), (1,)])]) == {"pass@2": 0.0, "best_of_2": 0.0}


def test_one_episode_a_task_has_no_such_figures_and_turns_without_tests_no_choice():
    assert _of_many([group(trajectory(1, [(1,)]))]) == {}
    assert _of_many([group(trajectory(1, [(1,)]), trajectory(-1, [(1,)]))]) == {"pass@2": 1.0}
