"""Every formula of the feedback, against numbers computed by hand."""

import copy
import math

import numpy as np
import pytest
from builders import group, trajectory
from hypothesis import given, settings
from hypothesis import strategies as st

from rlanything.algorithm.advantages import (
    ADVANTAGES,
    assign_policy_advantages,
    assign_reward_advantages,
    discounted_signals,
    integrated_feedback,
    standardise,
    step_signal,
    within,
)
from rlanything.algorithm.diagnostics import diagnostics, theorem_bound
from rlanything.config.schema import AlgorithmConfig, RewardConfig
from rlanything.types import Evaluation, Group, Status


def rewards(g: Group) -> list[list[float | None]]:
    return [[turn.reward for turn in t.turns] for t in g.trajectories]


def advantages(g: Group) -> list[list[float | None]]:
    return [[turn.advantage for turn in t.turns] for t in g.trajectories]


def test_integrated_feedback_adds_outcome_and_mean_step_score():
    assert integrated_feedback(1, 1 / 3, AlgorithmConfig()) == pytest.approx(4 / 3)
    assert integrated_feedback(-1, 1.0, AlgorithmConfig(step_weight=0.5)) == pytest.approx(-0.5)


def test_outcome_weight_zero_leaves_the_step_scores_alone():
    assert integrated_feedback(-1, 1.0, AlgorithmConfig(outcome_weight=0.0)) == 1.0


def test_lambda_zero_needs_no_evaluation():
    assert integrated_feedback(-1, None, AlgorithmConfig(step_weight=0.0)) == -1.0


def test_an_unparsable_evaluation_is_absent_from_the_mean():
    g = group(trajectory(1, [(1, None, -1)]), trajectory(1, [(1, None, None)]))
    assign_policy_advantages(g, AlgorithmConfig())
    assert rewards(g) == [[1.0], [2.0]]


def test_a_step_whose_evaluations_are_all_unparsable_takes_no_part():
    g = group(trajectory(1, [(None, None)]), trajectory(1, [(1, 1)]), trajectory(-1, [(1, 1)]))
    assign_policy_advantages(g, AlgorithmConfig())
    assert rewards(g) == [[None], [2.0], [0.0]]
    assert advantages(g) == [[None], [1.0], [-1.0]]


def test_one_evaluation_a_step_is_its_own_mean():
    g = group(trajectory(1, [(1,)]), trajectory(-1, [(-1,)]))
    assign_policy_advantages(g, AlgorithmConfig())
    assert rewards(g) == [[2.0], [-2.0]]


def test_step_index_standardises_over_the_episodes_that_reached_the_index():
    # Index 0: R = 2, 0, -2 (std sqrt(8/3)); index 1: only the third episode got there.
    g = group(trajectory(1, [(1,)]), trajectory(1, [(-1,)]), trajectory(-1, [(-1,), (1,)]))
    assign_policy_advantages(g, AlgorithmConfig())
    z = 2 / math.sqrt(8 / 3)
    assert advantages(g)[0][0] == pytest.approx(z)
    assert advantages(g)[1][0] == pytest.approx(0)
    assert advantages(g)[2] == [pytest.approx(-z), 0.0]


def test_a_lone_step_index_has_no_advantage_and_not_its_raw_reward():
    g = group(trajectory(1, [(1,), (1,)]), trajectory(-1, [(1,)]))
    assign_policy_advantages(g, AlgorithmConfig())
    assert advantages(g)[0][1] == 0.0


def test_zero_spread_gives_advantage_zero():
    g = group(trajectory(1, [(1,)]), trajectory(1, [(1,)]))
    assign_policy_advantages(g, AlgorithmConfig())
    assert advantages(g) == [[0.0], [0.0]]


def test_absorbing_keeps_a_finished_episode_in_later_baselines():
    # At index 1 the first episode counts with its final feedback 2 beside -2 and 0: mean 0, std sqrt(8/3).
    g = group(trajectory(1, [(1,)]), trajectory(-1, [(1,), (-1,)]), trajectory(-1, [(1,), (1,)]))
    assign_policy_advantages(g, AlgorithmConfig(advantage="step_index_absorbing"))
    z = 2 / math.sqrt(8 / 3)
    assert [a[1] for a in advantages(g)[1:]] == [pytest.approx(-z), pytest.approx(0)]


def test_separate_adds_standardised_outcome_and_step_signal():
    # Outcomes +1, -1 -> z +1, -1. Step signals 1, -1 -> z +1, -1, weighted by 0.5.
    g = group(trajectory(1, [(-1,)]), trajectory(-1, [(1,)]))
    assign_policy_advantages(g, AlgorithmConfig(advantage="separate", step_weight=0.5))
    assert advantages(g) == [[pytest.approx(0.5)], [pytest.approx(-0.5)]]


def test_separate_gives_the_outcome_no_say_where_only_failures_are_left():
    # Index 1: two failures; outcomes have no spread there, signals 1, -1 -> z +1, -1, weighted by 0.5.
    g = group(trajectory(1, [(1,)]), trajectory(-1, [(1,), (1,)]), trajectory(-1, [(1,), (-1,)]))
    assign_policy_advantages(g, AlgorithmConfig(advantage="separate", step_weight=0.5))
    assert [a[1] for a in advantages(g)[1:]] == [pytest.approx(0.5), pytest.approx(-0.5)]


def test_step_discount_credits_a_step_with_what_came_after_it():
    # Outcomes alike. Signals to go at index 0, gamma 0.5: 1 - 0.5 = 0.5 against -1 + 0.5 = -0.5 -> z +1, -1, times 0.5.
    g = group(trajectory(-1, [(1,), (-1,)]), trajectory(-1, [(-1,), (1,)]))
    assign_policy_advantages(g, AlgorithmConfig(advantage="separate", step_weight=0.5, options={"step_discount": 0.5}))
    assert advantages(g) == [
        [pytest.approx(0.5), pytest.approx(-0.5)],
        [pytest.approx(-0.5), pytest.approx(0.5)],
    ]


def test_discounted_signals_skip_a_turn_without_a_score():
    turns = trajectory(-1, [(1,), (None,), (-1,)]).turns
    for turn in turns:
        turn.signal = step_signal(turn, (), "all")
    assert discounted_signals(turns, 0.5) == [0.75, -0.5, -1.0]


def test_negative_weight_scales_what_lies_below_the_baseline_and_nothing_else():
    g = group(trajectory(1, [(1,)]), trajectory(-1, [(-1,)]))
    assign_policy_advantages(g, AlgorithmConfig(negative_weight=0.2))
    assert advantages(g) == [[pytest.approx(1.0)], [pytest.approx(-0.2)]]


def test_trajectory_rule_gives_every_turn_the_outcome_alone():
    g = group(trajectory(1, [(-1,), (-1,)]), trajectory(-1, [(1,)]), trajectory(-1, [(1,)]))
    assign_policy_advantages(g, AlgorithmConfig(advantage="trajectory"))
    high, low = (1 + 1 / 3) / math.sqrt(8 / 9), (-1 + 1 / 3) / math.sqrt(8 / 9)
    assert advantages(g) == [[pytest.approx(high)] * 2, [pytest.approx(low)], [pytest.approx(low)]]


def test_consistency_feedback_per_step_rewards_votes_that_agree_with_the_integrated_feedback():
    # R = 1 + 1/3; votes 1, 1, -1 -> rewards 4/3, 4/3, -4/3 -> z = 1/sqrt2, 1/sqrt2, -sqrt2.
    g = group(trajectory(1, [(1, 1, -1)]))
    assign_policy_advantages(g, AlgorithmConfig())
    assign_reward_advantages(g, RewardConfig())
    got = [e.advantage for e in g.trajectories[0].turns[0].evaluations]
    assert got == [pytest.approx(1 / math.sqrt(2))] * 2 + [pytest.approx(-math.sqrt(2))]


def test_consistency_feedback_per_task_keeps_unanimous_steps():
    g = group(trajectory(1, [(1, 1)]), trajectory(-1, [(1, 1)]))
    assign_policy_advantages(g, AlgorithmConfig())  # R = 2 and 0
    assign_reward_advantages(g, RewardConfig(group="step"))
    assert all(e.advantage == 0 for t in g.trajectories for turn in t.turns for e in turn.evaluations)
    assign_reward_advantages(g, RewardConfig(group="task"))  # rewards 2, 2, 0, 0
    got = [[e.advantage for e in t.turns[0].evaluations] for t in g.trajectories]
    assert got == [[1.0, 1.0], [-1.0, -1.0]]


def test_relative_consistency_rewards_votes_that_tell_better_steps_from_worse_ones():
    # R = -1/2 and -3/2, mean -1: relative +1/2 and -1/2. The better step of a failure earns "+1" what "-1" loses.
    g = group(trajectory(-1, [(1, -1), (-1, -1)]))
    assign_policy_advantages(g, AlgorithmConfig(step_weight=0.5))
    assert rewards(g) == [[-1.0, -1.5]]
    assign_reward_advantages(g, RewardConfig(consistency="relative", group="task"))
    got = [[e.reward for e in turn.evaluations] for turn in g.trajectories[0].turns]
    assert got == [[pytest.approx(0.25), pytest.approx(-0.25)], [pytest.approx(0.25)] * 2]
    assign_reward_advantages(g, RewardConfig())  # the paper's: "-1" always agrees with a failure
    assert [[e.reward for e in turn.evaluations] for turn in g.trajectories[0].turns] == [[-1.0, 1.0], [1.5, 1.5]]


def test_an_unparsable_evaluation_gets_its_fixed_penalty_whatever_the_outcome():
    for outcome in (1, -1):
        g = group(trajectory(outcome, [(1, -1, None)]))
        assign_policy_advantages(g, AlgorithmConfig())
        assign_reward_advantages(g, RewardConfig(unparsable_reward=-3.0))
        evaluations = g.trajectories[0].turns[0].evaluations
        assert [e.reward for e in evaluations] == [outcome, -outcome, -3.0]
        assert evaluations[2].advantage == min(e.advantage for e in evaluations)


def test_bands_include_their_bounds_and_exclude_nan():
    assert within(0.125, [0.125, 0.875]) and within(0.875, [0.125, 0.875])
    assert not within(0.0, [0.125, 0.875]) and not within(float("nan"), [0.0, 1.0])


def test_bound_of_theorem_1():
    assert theorem_bound(1.5, 3) == pytest.approx(1 - math.exp(-3 * 0.25 / 4))
    assert theorem_bound(1.0, 3) == 0.0 and theorem_bound(0.7, 3) == 0.0


def test_diagnostics_count_votes_by_outcome_and_by_label():
    g = group(trajectory(1, [(1, 1, -1)]), trajectory(-1, [(-1, None, 1)]))
    g.trajectories[0].turns[0].label = 1
    g.trajectories[1].turns[0].label = 1
    d = diagnostics([g])
    assert d["success_rate"] == 0.5
    assert d["rm_p_plus"] == pytest.approx(2 / 3) and d["rm_p_minus"] == pytest.approx(1 / 2)
    assert d["rm_mu"] == pytest.approx(7 / 6)
    assert d["rm_bound"] == pytest.approx(1 - math.exp(-3 * (1 / 6) ** 2 / 4))
    assert d["rm_outcome_agreement"] == pytest.approx(3 / 5)
    assert d["rm_process_accuracy"] == pytest.approx(3 / 5)
    assert d["rm_unparsable_rate"] == pytest.approx(1 / 6)


def test_diagnostics_of_nothing_are_nan_and_not_an_error():
    assert math.isnan(diagnostics([])["success_rate"])


score = st.sampled_from([1, -1, None])
turns = st.lists(st.lists(score, min_size=3, max_size=3), min_size=1, max_size=5)
episodes = st.lists(
    st.tuples(st.sampled_from([1, -1]), turns, st.sampled_from([Status.COMPLETED, Status.TRUNCATED, Status.ENV_ERROR])),
    min_size=1,
    max_size=6,
)
rules = st.sampled_from(
    [AlgorithmConfig(advantage=rule) for rule in sorted(ADVANTAGES)]
    + [AlgorithmConfig(advantage="separate", options={"step_discount": 0.8}, negative_weight=0.2)]
)


def build(data) -> Group:
    return group(*(trajectory(o, t, status=s) for o, t, s in data))


@given(episodes, rules)
@settings(deadline=None)
def test_advantages_of_a_step_index_sum_to_zero(data, rule):
    g = build(data)
    assign_policy_advantages(g, rule)
    if rule.advantage == "step_index":
        for i in range(5):
            total = sum(t.turns[i].advantage or 0 for t in g.valid if i < len(t.turns))
            assert total == pytest.approx(0, abs=1e-9)
    if rule.advantage == "separate" and rule.negative_weight == 1:
        for i in range(5):
            total = sum(t.turns[i].advantage or 0 for t in g.valid if i < len(t.turns))
            assert total == pytest.approx(0, abs=1e-9)
    if rule.advantage == "trajectory":
        assert sum(t.turns[0].advantage for t in g.valid) == pytest.approx(0, abs=1e-9)


@given(episodes, rules, st.sampled_from(["feedback", "relative"]), st.randoms())
@settings(deadline=None)
def test_reordering_the_episodes_changes_nothing(data, rule, consistency, random):
    g, order = build(data), list(range(len(data)))
    random.shuffle(order)
    shuffled = Group(g.task, [copy.deepcopy(g.trajectories[i]) for i in order])
    for x in (g, shuffled):
        assign_policy_advantages(x, rule)
        assign_reward_advantages(x, RewardConfig(group="task", consistency=consistency))
    for i, j in enumerate(order):
        for a, b in zip(shuffled.trajectories[i].turns, g.trajectories[j].turns, strict=True):
            assert a.advantage == (None if b.advantage is None else pytest.approx(b.advantage, abs=1e-9))
            assert [e.advantage for e in a.evaluations] == [pytest.approx(e.advantage, abs=1e-9) for e in b.evaluations]


@given(episodes, turns, rules, st.sampled_from(["feedback", "relative"]), st.sampled_from(["step", "task"]))
@settings(deadline=None)
def test_a_broken_episode_moves_nobody_elses_advantage(data, broken, rule, consistency, pooled):
    with_it, without = build([*data, (1, broken, Status.ENV_TIMEOUT)]), build(data)
    for g in (with_it, without):
        assign_policy_advantages(g, rule)
        assign_reward_advantages(g, RewardConfig(group=pooled, consistency=consistency))
    for a, b in zip(with_it.trajectories, without.trajectories, strict=False):
        assert [e.advantage for t in a.turns for e in t.evaluations] == [
            e.advantage for t in b.turns for e in t.evaluations
        ]
    assert advantages(with_it)[:-1] == advantages(without)
    assert all(a is None for a in advantages(with_it)[-1])


def test_standardise_uses_the_population_deviation():
    assert standardise([0, 2]).tolist() == [-1.0, 1.0]
    assert np.all(standardise([0.1] * 3) == 0)


def coding_group(outcomes, matrix, config, unparsable=()):
    """Programs with these outcomes and their passes of the tests (a row a program); tests named in `unparsable` are
    none."""
    g = group(*(trajectory(outcome, [()]) for outcome in outcomes))
    g.tests = [Evaluation([1], [2], [-0.5], f"test {j}", None) for j in range(len(matrix[0]))]
    for t, row in zip(g.trajectories, matrix, strict=True):
        t.turns[0].test_scores = [None if j in unparsable else s for j, s in enumerate(row)]
    for j, test in enumerate(g.tests):
        right = [t.turns[0].test_scores[j] for t in g.trajectories if t.success]
        test.score = min((s for s in right if s is not None), default=None)
        test.parse_error = "no test" if j in unparsable else ""
    assign_policy_advantages(g, AlgorithmConfig(), config.step_tests)
    assign_reward_advantages(g, config)
    return g


TESTED = RewardConfig(consistency="tests")
# Two correct programs, two wrong ones; test 0 tells all apart, 1 one of them, 2 is wrong and one wrong program passes.
MATRIX = [[1, 1, -1], [1, 1, 1], [-1, 1, 1], [-1, -1, -1]]


def test_a_unit_test_earns_the_wrong_programs_it_tells_or_loses_those_it_lets_pass():
    g = coding_group([1, 1, -1, -1], MATRIX, TESTED)
    assert [t.reward for t in g.tests] == [2.0, 1.0, -1.0] and [t.score for t in g.tests] == [1, 1, -1]
    assert g.tests[0].advantage > g.tests[1].advantage > 0 > g.tests[2].advantage


def test_only_unit_tests_that_correct_programs_pass_count_for_the_policy():
    g = coding_group([1, 1, -1, -1], MATRIX, TESTED)
    assert [t.turns[0].reward for t in g.trajectories] == [2.0, 2.0, -1.0, -2.0]
    every = coding_group([1, 1, -1, -1], MATRIX, RewardConfig(consistency="tests", step_tests="all"))
    assert every.trajectories[0].turns[0].reward == pytest.approx(1 + 1 / 3)


def test_without_a_wrong_program_a_unit_test_is_right_or_not():
    g = coding_group([1, 1], [[1, -1], [1, 1]], TESTED)
    assert [t.reward for t in g.tests] == [1.0, -1.0]


def test_without_a_correct_program_no_unit_test_trains_and_the_outcome_stands_alone():
    g = coding_group([-1, -1], [[1, -1], [1, 1]], TESTED)
    assert [t.advantage for t in g.tests] == [0.0, 0.0] and [t.turns[0].reward for t in g.trajectories] == [-1.0, -1.0]


def test_what_is_no_unit_test_gets_the_least():
    g = coding_group([1, -1, -1, -1, -1], [[1, -1, 1]] + [[1, 1, 1]] * 4, TESTED, unparsable=[2])
    assert [t.reward for t in g.tests] == [0.0, -4.0, -4.0]
    assert g.trajectories[0].turns[0].reward == 2.0, "absent from the mean"


def test_a_unit_test_that_the_sandbox_did_not_try_on_a_correct_program_trains_nothing():
    g = coding_group([1, -1, -1], [[1, -1, None], [-1, 1, -1], [-1, 1, -1]], TESTED)
    assert g.tests[2].advantage == 0 and [t.advantage for t in g.tests[:2]] == [1.0, -1.0]
    d = diagnostics([g])
    assert d["test_accuracy"] == 0.5 and d["test_unknown_rate"] == pytest.approx(1 / 3)


def test_the_generic_consistency_of_a_unit_test_is_the_mean_over_programs():
    config = RewardConfig(consistency="feedback")
    g = coding_group([1, 1, -1, -1], MATRIX, config)
    rewards = [t.turns[0].reward for t in g.trajectories]
    assert g.tests[0].reward == pytest.approx(sum(r * s for r, s in zip(rewards, [1, 1, -1, -1], strict=True)) / 4)


def test_diagnostics_of_unit_tests():
    g = coding_group([1, 1, -1, -1], MATRIX, TESTED)
    g.trajectories[0].turns[0].results = ("ok", "ok")
    g.trajectories[2].turns[0].results = ("ok", "time_limit")
    d = diagnostics([g])
    assert d["test_accuracy"] == pytest.approx(2 / 3) and d["test_detect_rate"] == pytest.approx(1 / 3)
    assert d["pass_ratio"] == 0.375, "a response without a program passes none"
    assert d["verdict/time_limit"] == 0.25 and d["rm_p_plus"] == pytest.approx(5 / 6)
