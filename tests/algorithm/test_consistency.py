"""What judgements earn, against numbers computed by hand."""

import math

import pytest
from builders import diagnostics, group, judgement, trajectory

from rlanything.algorithm.advantages import assign_advantages
from rlanything.algorithm.consistency import assign_consistency, passes_correct
from rlanything.config.schema import AlgorithmConfig, RewardConfig


def test_consistency_feedback_per_step_rewards_votes_that_agree_with_the_integrated_feedback():
    # R = 1 + 1/3; votes 1, 1, -1 -> rewards 4/3, 4/3, -4/3 -> z = 1/sqrt2, 1/sqrt2, -sqrt2.
    g = group(trajectory(1, [(1, 1, -1)]))
    assign_advantages([g], AlgorithmConfig())
    assign_consistency([g], RewardConfig())
    got = [j.advantage for j in g.judgements]
    assert got == [pytest.approx(1 / math.sqrt(2))] * 2 + [pytest.approx(-math.sqrt(2))]


def test_consistency_feedback_per_task_keeps_unanimous_steps():
    g = group(trajectory(1, [(1, 1)]), trajectory(-1, [(1, 1)]))
    assign_advantages([g], AlgorithmConfig())  # R = 2 and 0
    assign_consistency([g], RewardConfig(group="step"))
    assert all(j.advantage == 0 for j in g.judgements)
    assign_consistency([g], RewardConfig(group="task"))  # rewards 2, 2, 0, 0
    assert [j.advantage for j in g.judgements] == [1.0, 1.0, -1.0, -1.0]


def test_consistency_feedback_per_index_compares_judgements_of_steps_in_the_same_place():
    g = group(trajectory(1, [(1,), (1,)]), trajectory(-1, [(1,), (-1,)]))
    assign_advantages([g], AlgorithmConfig())  # R = 2, 2 and 0, -2, so the rewards are 2, 2 and 0, 2
    assign_consistency([g], RewardConfig(group="index"))
    assert [j.advantage for j in g.judgements] == [1.0, 0.0, -1.0, 0.0]


def test_relative_consistency_rewards_votes_that_tell_better_steps_from_worse_ones():
    # R = -1/2 and -3/2, mean -1: relative +1/2 and -1/2. The better step of a failure earns "+1" what "-1" loses.
    g = group(trajectory(-1, [(1, -1), (-1, -1)]))
    assign_advantages([g], AlgorithmConfig(step_weight=0.5))
    assert [turn.reward for turn in g.trajectories[0].turns] == [-1.0, -1.5]
    assign_consistency([g], RewardConfig(consistency="relative", group="task"))
    assert [j.reward for j in g.judgements] == [pytest.approx(r) for r in (0.25, -0.25, 0.25, 0.25)]
    assign_consistency([g], RewardConfig())  # the paper's: "-1" always agrees with a failure
    assert [j.reward for j in g.judgements] == [-1.0, 1.0, 1.5, 1.5]


def test_worth_tells_a_wrong_turn_from_the_right_one_before_it():
    # Both votes on the first episode's turns say "good". A second episode goes on from between them, and solves it.
    g = group(trajectory(-1, [(1,), (1,)]), trajectory(1, [(), (1,)]), trajectory(-1, [(1,), (-1, None)]))
    g.trajectories[1].origin, g.trajectories[1].begun = 0, 1
    g.judgements[0].scores[1, 0] = 1  # the repeated turn
    assign_advantages([g], AlgorithmConfig())
    assign_consistency([g], RewardConfig(consistency="worth", group="task"))
    fork, start = 1, (1 - 1) / 2  # mean outcomes after the first episode's first turn, and at the beginning
    expected = [fork - start, -1 - fork, 1 - fork, -1 - start, 1 + start, -3.0]
    assert [j.reward for j in g.judgements] == pytest.approx(expected)
    assign_consistency([g], RewardConfig(group="task"))
    assert g.judgements[0].reward == 1.0, "R of a failure and of a success with lambda 1: 0 and 2, so both votes gain"


def test_a_turn_that_changed_nothing_is_no_unparsable_judgement():
    g = group(trajectory(-1, [(1, -1)]), trajectory(-1, [(1,)]))
    assign_advantages([g], AlgorithmConfig())
    assign_consistency([g], RewardConfig(consistency="worth"))
    assert [j.reward for j in g.judgements] == [0.0, 0.0, 0.0]


def test_an_unparsable_judgement_gets_its_fixed_penalty_whatever_the_outcome():
    for outcome in (1, -1):
        g = group(trajectory(outcome, [(1, -1, None)]))
        assign_advantages([g], AlgorithmConfig())
        assign_consistency([g], RewardConfig(unparsable_reward=-3.0))
        assert [j.reward for j in g.judgements] == [outcome, -outcome, -3.0]
        assert g.judgements[2].advantage == min(j.advantage for j in g.judgements)


def test_a_judgement_of_a_whole_episode_earns_the_mean_over_its_turns():
    # Every answer scores both turns of an episode. R = 1 + 1 and -1 + (-1 + 1) / 2: rewards 2 * 1, -1 * -1, -1 * 1.
    g = group(trajectory(1, [(), ()]), trajectory(-1, [(), ()]))
    g.judgements = [
        judgement({(0, 0): 1, (0, 1): 1}),
        judgement({(1, 0): -1, (1, 1): -1}),
        judgement({(1, 0): 1, (1, 1): 1}),
    ]
    assign_advantages([g], AlgorithmConfig())
    assert [turn.reward for t in g.trajectories for turn in t.turns] == [2.0, 2.0, -1.0, -1.0]
    assign_consistency([g], RewardConfig(group="task"))
    assert [j.reward for j in g.judgements] == [2.0, 1.0, -1.0]


TESTED = RewardConfig(consistency="tests")


def coding_group(outcomes, matrix, config=TESTED, unparsable=()):
    """Programs with these outcomes and their scores on the tests (a row a program); `unparsable` answers hold no
    test."""
    g = group(*(trajectory(outcome, [()]) for outcome in outcomes))
    for j in range(len(matrix[0])):
        scores = {(e, 0): None if j in unparsable else row[j] for e, row in enumerate(matrix)}
        test = judgement(scores, shared=True, parse_error="no test" if j in unparsable else "")
        every = config.step_tests == "all" or passes_correct(g, test) is True
        test.counts = j not in unparsable and every
        g.judgements.append(test)
    assign_advantages([g], AlgorithmConfig())
    assign_consistency([g], config)
    return g


# Two correct programs, two wrong ones; test 0 tells all apart, 1 one of them, 2 is wrong and one wrong program passes.
MATRIX = [[1, 1, -1], [1, 1, 1], [-1, 1, 1], [-1, -1, -1]]


def test_a_unit_test_earns_the_wrong_programs_it_tells_or_loses_those_it_lets_pass():
    g = coding_group([1, 1, -1, -1], MATRIX)
    assert [t.reward for t in g.judgements] == [2.0, 1.0, -1.0] and [passes_correct(g, t) for t in g.judgements] == [
        True,
        True,
        False,
    ]
    assert g.judgements[0].advantage > g.judgements[1].advantage > 0 > g.judgements[2].advantage


def test_only_unit_tests_that_correct_programs_pass_count_for_the_policy():
    g = coding_group([1, 1, -1, -1], MATRIX)
    assert [t.turns[0].reward for t in g.trajectories] == [2.0, 2.0, -1.0, -2.0]
    every = coding_group([1, 1, -1, -1], MATRIX, RewardConfig(consistency="tests", step_tests="all"))
    assert every.trajectories[0].turns[0].reward == pytest.approx(1 + 1 / 3)


def test_without_a_wrong_program_a_unit_test_is_right_or_not():
    g = coding_group([1, 1], [[1, -1], [1, 1]])
    assert [t.reward for t in g.judgements] == [1.0, -1.0]


def test_without_a_correct_program_no_unit_test_trains_and_the_outcome_stands_alone():
    g = coding_group([-1, -1], [[1, -1], [1, 1]])
    assert [t.advantage for t in g.judgements] == [0.0, 0.0] and [t.turns[0].reward for t in g.trajectories] == [
        -1.0,
        -1.0,
    ]


def test_what_is_no_unit_test_gets_the_least():
    g = coding_group([1, -1, -1, -1, -1], [[1, -1, 1]] + [[1, 1, 1]] * 4, unparsable=[2])
    assert [t.reward for t in g.judgements] == [0.0, -4.0, -4.0]
    assert g.trajectories[0].turns[0].reward == 2.0, "absent from the mean"


def test_a_unit_test_that_the_sandbox_did_not_try_on_a_correct_program_trains_nothing():
    g = coding_group([1, -1, -1], [[1, -1, None], [-1, 1, -1], [-1, 1, -1]])
    assert g.judgements[2].advantage == 0 and [t.advantage for t in g.judgements[:2]] == [1.0, -1.0]
    d = diagnostics([g])
    assert d["test_accuracy"] == 0.5 and d["test_unknown_rate"] == pytest.approx(1 / 3)


def test_the_generic_consistency_of_a_unit_test_is_the_mean_over_programs():
    config = RewardConfig(consistency="feedback")
    g = coding_group([1, 1, -1, -1], MATRIX, config)
    rewards = [t.turns[0].reward for t in g.trajectories]
    assert g.judgements[0].reward == pytest.approx(sum(r * s for r, s in zip(rewards, [1, 1, -1, -1], strict=True)) / 4)


def test_diagnostics_of_unit_tests():
    g = coding_group([1, 1, -1, -1], MATRIX)
    g.trajectories[0].turns[0].results = ("ok", "ok")
    g.trajectories[2].turns[0].results = ("ok", "time_limit")
    d = diagnostics([g])
    assert d["test_accuracy"] == pytest.approx(2 / 3) and d["test_detect_rate"] == pytest.approx(1 / 3)
    assert d["pass_ratio"] == 0.375, "a response without a program passes none"
    assert d["verdict/time_limit"] == 0.25 and d["rm_p_plus"] == pytest.approx(5 / 6)
