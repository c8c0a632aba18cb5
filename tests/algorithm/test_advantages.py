"""Every advantage rule against numbers computed by hand."""

import copy
import math

import numpy as np
import pytest
from builders import group, trajectory
from hypothesis import given, settings
from hypothesis import strategies as st

from rlanything.algorithm.advantages import (
    RULES,
    assign_advantages,
    discounted,
    integrated_feedback,
    lasting,
    standardise,
    within,
)
from rlanything.algorithm.consistency import assign_consistency
from rlanything.config.schema import AlgorithmConfig, RewardConfig
from rlanything.errors import ConfigError
from rlanything.types import Group, Score, Status


def rewards(g: Group) -> list[list[float | None]]:
    return [[turn.reward for turn in t.turns] for t in g.trajectories]


def advantages(g: Group) -> list[list[float | None]]:
    return [[turn.advantage for turn in t.turns] for t in g.trajectories]


def rule(name: str, **fields) -> AlgorithmConfig:
    return AlgorithmConfig(advantage=name, **fields)


def test_integrated_feedback_adds_outcome_and_mean_step_score():
    assert integrated_feedback(1, 1 / 3, AlgorithmConfig()) == pytest.approx(4 / 3)
    assert integrated_feedback(-1, 1.0, AlgorithmConfig(step_weight=0.5)) == pytest.approx(-0.5)


def test_outcome_weight_zero_leaves_the_step_scores_alone():
    assert integrated_feedback(-1, 1.0, AlgorithmConfig(outcome_weight=0.0)) == 1.0


def test_lambda_zero_needs_no_evaluation():
    assert integrated_feedback(-1, None, AlgorithmConfig(step_weight=0.0)) == -1.0


def test_an_unparsable_evaluation_is_absent_from_the_mean():
    g = group(trajectory(1, [(1, None, -1)]), trajectory(1, [(1, None, None)]))
    assign_advantages([g], AlgorithmConfig())
    assert rewards(g) == [[1.0], [2.0]]


def test_a_step_whose_evaluations_are_all_unparsable_takes_no_part():
    g = group(trajectory(1, [(None, None)]), trajectory(1, [(1, 1)]), trajectory(-1, [(1, 1)]))
    assign_advantages([g], AlgorithmConfig())
    assert rewards(g) == [[None], [2.0], [0.0]]
    assert advantages(g) == [[None], [1.0], [-1.0]]


def test_one_evaluation_a_step_is_its_own_mean():
    g = group(trajectory(1, [(1,)]), trajectory(-1, [(-1,)]))
    assign_advantages([g], AlgorithmConfig())
    assert rewards(g) == [[2.0], [-2.0]]


def test_step_index_standardises_over_the_episodes_that_reached_the_index():
    # Index 0: R = 2, 0, -2 (std sqrt(8/3)); index 1: only the third episode got there.
    g = group(trajectory(1, [(1,)]), trajectory(1, [(-1,)]), trajectory(-1, [(-1,), (1,)]))
    assign_advantages([g], AlgorithmConfig())
    z = 2 / math.sqrt(8 / 3)
    assert advantages(g)[0][0] == pytest.approx(z)
    assert advantages(g)[1][0] == pytest.approx(0)
    assert advantages(g)[2] == [pytest.approx(-z), 0.0]


def test_a_lone_step_index_has_no_advantage_and_not_its_raw_reward():
    g = group(trajectory(1, [(1,), (1,)]), trajectory(-1, [(1,)]))
    assign_advantages([g], AlgorithmConfig())
    assert advantages(g)[0][1] == 0.0


def test_zero_spread_gives_advantage_zero():
    g = group(trajectory(1, [(1,)]), trajectory(1, [(1,)]))
    assign_advantages([g], AlgorithmConfig())
    assert advantages(g) == [[0.0], [0.0]]


def test_absorbing_keeps_a_finished_episode_in_later_baselines():
    # At index 1 the first episode counts with its final feedback 2 beside -2 and 0: mean 0, std sqrt(8/3).
    g = group(trajectory(1, [(1,)]), trajectory(-1, [(1,), (-1,)]), trajectory(-1, [(1,), (1,)]))
    assign_advantages([g], AlgorithmConfig(advantage="step_index_absorbing"))
    z = 2 / math.sqrt(8 / 3)
    assert [a[1] for a in advantages(g)[1:]] == [pytest.approx(-z), pytest.approx(0)]


def test_separate_adds_standardised_outcome_and_step_signal():
    # Outcomes +1, -1 -> z +1, -1. Step signals 1, -1 -> z +1, -1, weighted by 0.5.
    g = group(trajectory(1, [(-1,)]), trajectory(-1, [(1,)]))
    assign_advantages([g], AlgorithmConfig(advantage="separate", step_weight=0.5))
    assert advantages(g) == [[pytest.approx(0.5)], [pytest.approx(-0.5)]]


def test_separate_gives_the_outcome_no_say_where_only_failures_are_left():
    # Index 1: two failures; outcomes have no spread there, signals 1, -1 -> z +1, -1, weighted by 0.5.
    g = group(trajectory(1, [(1,)]), trajectory(-1, [(1,), (1,)]), trajectory(-1, [(1,), (-1,)]))
    assign_advantages([g], AlgorithmConfig(advantage="separate", step_weight=0.5))
    assert [a[1] for a in advantages(g)[1:]] == [pytest.approx(0.5), pytest.approx(-0.5)]


def test_step_discount_credits_a_step_with_what_came_after_it():
    # Outcomes alike. Signals to go at index 0, gamma 0.5: 1 - 0.5 = 0.5 against -1 + 0.5 = -0.5 -> z +1, -1, times 0.5.
    g = group(trajectory(-1, [(1,), (-1,)]), trajectory(-1, [(-1,), (1,)]))
    assign_advantages([g], AlgorithmConfig(advantage="separate", step_weight=0.5, options={"step_discount": 0.5}))
    assert advantages(g) == [
        [pytest.approx(0.5), pytest.approx(-0.5)],
        [pytest.approx(-0.5), pytest.approx(0.5)],
    ]


def test_process_teaches_where_all_fail_at_the_same_step():
    # Outcomes alike. Signals 1, -1, 1, -1: mean 0, std 1. `separate` sees no difference at either index.
    g = group(trajectory(-1, [(1,), (-1,)]), trajectory(-1, [(1,), (-1,)]))
    assign_advantages([g], AlgorithmConfig(advantage="process", step_weight=0.5))
    assert advantages(g) == [[pytest.approx(0.5), pytest.approx(-0.5)]] * 2
    assign_advantages([g], AlgorithmConfig(advantage="separate", step_weight=0.5))
    assert advantages(g) == [[0.0, 0.0]] * 2


def test_process_adds_the_outcome_and_with_a_discount_what_came_after():
    # Outcomes 1, -1 -> z 1, -1. Signals 1, 1, -1 have mean 1/3, std sqrt(8/9): z 1/sqrt(2) twice, -sqrt(2).
    g = group(trajectory(1, [(1,), (1,)]), trajectory(-1, [(-1,)]))
    assign_advantages([g], AlgorithmConfig(advantage="process", options={"step_discount": 0.5}))
    good, bad = 1 / math.sqrt(2), -math.sqrt(2)
    assert advantages(g) == [[pytest.approx(1 + 1.5 * good), pytest.approx(1 + good)], [pytest.approx(-1 + 1.5 * bad)]]


def test_process_leaves_out_turns_that_nobody_judged():
    g = group(trajectory(1, [(1,), (None,)]), trajectory(-1, [(-1,)]))
    assign_advantages([g], AlgorithmConfig(advantage="process"))
    assert advantages(g) == [[pytest.approx(2), None], [pytest.approx(-2)]]


@pytest.mark.parametrize("name", ["separate", "process"])
def test_to_give_up_is_no_better_than_to_go_on_badly(name):
    # All fail. At index 1 one episode ends, wrongly; the others make more bad steps, and one of them a good one.
    g = group(
        trajectory(-1, [(1,), (-1,)]),
        trajectory(-1, [(1,), (-1,), (-1,), (-1,)]),
        trajectory(-1, [(1,), (-1,), (-1,), (1,)]),
    )
    assign_advantages([g], rule(name, options={"step_discount": 0.8}))
    ended, *went_on = (a[1] for a in advantages(g))
    assert ended <= min(went_on) + 1e-9
    assert ended < went_on[1]


def test_a_right_end_is_worth_as_much_as_the_steps_that_it_saves():
    # Signals to go at index 0, gamma 0.5: 1 + 0.5 + 0.25 for both, as the first episode keeps its last one.
    g = group(trajectory(1, [(1,)]), trajectory(1, [(1,), (1,), (1,)]))
    assign_advantages([g], rule("separate", options={"step_discount": 0.5}))
    assert advantages(g) == [[0.0], [0.0] * 3]


def test_an_end_that_nobody_judged_keeps_the_last_signal_that_is_known():
    assert lasting([1.0, -1.0, None], 5, 0.5) == [1.0, -1.0, -0.75]
    assert lasting([1.0], 1, 0.5) == [1.0] and lasting([None], 3, 0.5) == [0.0] and lasting([], 3, 0.5) == []


def test_discounted_sums_weigh_what_comes_later():
    assert discounted([1.0, 0.0, -1.0], 0.5) == [0.75, -0.5, -1.0]


def test_negative_weight_scales_what_lies_below_the_baseline_and_nothing_else():
    g = group(trajectory(1, [(1,)]), trajectory(-1, [(-1,)]))
    assign_advantages([g], AlgorithmConfig(negative_weight=0.2))
    assert advantages(g) == [[pytest.approx(1.0)], [pytest.approx(-0.2)]]


def test_trajectory_rule_gives_every_turn_the_outcome_alone():
    g = group(trajectory(1, [(-1,), (-1,)]), trajectory(-1, [(1,)]), trajectory(-1, [(1,)]))
    assign_advantages([g], AlgorithmConfig(advantage="trajectory"))
    high, low = (1 + 1 / 3) / math.sqrt(8 / 9), (-1 + 1 / 3) / math.sqrt(8 / 9)
    assert advantages(g) == [[pytest.approx(high)] * 2, [pytest.approx(low)], [pytest.approx(low)]]


def test_bands_include_their_bounds_and_exclude_nan():
    assert within(0.125, [0.125, 0.875]) and within(0.875, [0.125, 0.875])
    assert not within(0.0, [0.125, 0.875]) and not within(float("nan"), [0.0, 1.0])


score = st.sampled_from([1, -1, None])
turns = st.lists(st.lists(score, min_size=3, max_size=3), min_size=1, max_size=5)
episodes = st.lists(
    st.tuples(st.sampled_from([1, -1]), turns, st.sampled_from([Status.COMPLETED, Status.TRUNCATED, Status.ENV_ERROR])),
    min_size=1,
    max_size=6,
)
rules = st.sampled_from(
    [rule(name) for name in sorted(RULES)] + [rule("separate", options={"step_discount": 0.8}, negative_weight=0.2)]
)


def build(data) -> Group:
    return group(*(trajectory(o, t, status=s) for o, t, s in data))


@given(episodes, rules)
@settings(deadline=None, max_examples=50)
def test_advantages_of_a_step_index_sum_to_zero(data, config):
    g = build(data)
    assign_advantages([g], config)
    if config.advantage in ("step_index", "separate") and config.negative_weight == 1:
        for i in range(5):
            total = sum(t.turns[i].advantage or 0 for t in g.valid if i < len(t.turns))
            assert total == pytest.approx(0, abs=1e-9)
    if config.advantage == "trajectory":
        assert sum(t.turns[0].advantage for t in g.valid) == pytest.approx(0, abs=1e-9)


@given(episodes, rules, st.sampled_from(["feedback", "relative"]), st.randoms())
@settings(deadline=None, max_examples=50)
def test_reordering_the_episodes_changes_nothing(data, config, consistency, random):
    g, order = build(data), list(range(len(data)))
    random.shuffle(order)
    shuffled = copy.deepcopy(g)
    shuffled.trajectories = [shuffled.trajectories[i] for i in order]
    for x in (g, shuffled):
        assign_advantages([x], config)
        assign_consistency([x], RewardConfig(group="task", consistency=consistency))
    for i, j in enumerate(order):
        for a, b in zip(shuffled.trajectories[i].turns, g.trajectories[j].turns, strict=True):
            assert a.advantage == (None if b.advantage is None else pytest.approx(b.advantage, abs=1e-9))
    for a, b in zip(shuffled.judgements, g.judgements, strict=True):
        assert a.advantage == pytest.approx(b.advantage, abs=1e-9)


@given(episodes, turns, rules, st.sampled_from(["feedback", "relative"]), st.sampled_from(["step", "task"]))
@settings(deadline=None, max_examples=50)
def test_a_broken_episode_moves_nobody_elses_advantage(data, broken, config, consistency, pooled):
    with_it, without = build([*data, (1, broken, Status.ENV_TIMEOUT)]), build(data)
    for g in (with_it, without):
        assign_advantages([g], config)
        assign_consistency([g], RewardConfig(group=pooled, consistency=consistency))
    others = [j.advantage for j in with_it.judgements if next(iter(j.scores))[0] < len(data)]
    assert others == [j.advantage for j in without.judgements]
    assert advantages(with_it)[:-1] == advantages(without)
    assert all(a is None for a in advantages(with_it)[-1])


def test_standardise_uses_the_population_deviation():
    assert standardise([0, 2]).tolist() == [-1.0, 1.0]
    assert np.all(standardise([0.1] * 3) == 0)


def outcomes(*found: int) -> Group:
    return group(*(trajectory(o, [()]) for o in found))


def test_leave_one_out_compares_an_episode_with_the_mean_of_the_others():
    g = outcomes(1, -1, -1)
    assign_advantages([g], rule("leave_one_out", step_weight=0.0))
    assert advantages(g) == [[2.0], [-1.0], [-1.0]]
    lone = outcomes(1)
    assign_advantages([lone], rule("leave_one_out", step_weight=0.0))
    assert advantages(lone) == [[0.0]]


def in_states(g: Group, *states: str) -> Group:
    for t, names in zip(g.trajectories, states, strict=True):
        for turn, name in zip(t.turns, names, strict=True):
            turn.state = name
    return g


def test_same_state_compares_discounted_returns_of_turns_that_began_alike():
    # Returns with gamma 0.5: the first episode 1, 2; the second 0, 0, 0. Both visit state b: 2 and 0, so z = 1 and -1;
    # a: 1 and 0, likewise; state c is visited once: 0. Outcomes: z = 1 and -1.
    g = in_states(group(trajectory(1, [(), ()]), trajectory(-1, [(), (), ()])), "ab", "abc")
    assign_advantages([g], rule("same_state", step_weight=0.0, options={"discount": 0.5, "weight": 0.5}))
    assert advantages(g) == [[pytest.approx(1.5)] * 2, [pytest.approx(-1.5), pytest.approx(-1.5), pytest.approx(-1.0)]]


@pytest.mark.parametrize("name", ["same_state", "grouped_gae"])
def test_a_failure_is_no_better_if_it_comes_later(name):
    g = in_states(group(*(trajectory(-1, [()] * n) for n in (1, 2, 4))), "a", "ab", "abcd")
    assign_advantages([g], rule(name, step_weight=0.0))
    assert {a for of_one in advantages(g) for a in of_one} == {0.0}


def test_a_low_score_is_no_better_if_it_comes_later():
    g = in_states(group(trajectory(-1, [()]), trajectory(-1, [()] * 3), trajectory(-1, [()])), "a", "abc", "a")
    for t, reward in zip(g.trajectories, (-20.0, -200.0, -20.0), strict=True):
        t.score = Score(success=False, reward=reward)
    assign_advantages([g], rule("same_state", step_weight=0.0, reward="score", options={"weight": 100.0}))
    (first,), (late, *_), (third,) = advantages(g)
    assert first == third > late


@pytest.mark.parametrize("name", ["same_state", "grouped_gae"])
def test_an_early_wrong_end_is_no_better_than_a_try_that_goes_on_as_badly(name):
    g = in_states(group(trajectory(-1, [(-1,)]), trajectory(-1, [(-1,)] * 3)), "a", "abc")
    assign_advantages([g], rule(name, step_weight=1.0, options={"discount": 1.0}))
    ended, went_on = advantages(g)
    assert ended[0] <= went_on[0] + 1e-9 and ended[0] <= 0


def test_same_state_counts_step_signals_in_the_return():
    # One turn each in the same state. Returns 0.5 * 1 and 0.5 * -1: outcomes alike, so only signals differ.
    g = in_states(group(trajectory(-1, [(1,)]), trajectory(-1, [(-1,)])), "a", "a")
    assign_advantages([g], rule("same_state", step_weight=0.5))
    assert advantages(g) == [[pytest.approx(1.0)], [pytest.approx(-1.0)]]


def test_grouped_gae_sums_td_errors_over_values_of_the_groups_own_states():
    # gamma 1, lambda 0: advantages are TD errors. V(a) = (1 - 1) / 2 = 0, V(b) = 1, V(c) = -1 (returns are outcomes).
    # First episode a, b: 0 + 1 - 0 = 1, 1 + 0 - 1 = 0. Second a, c: 0 - 1 - 0 = -1, -1 + 0 + 1 = 0. Std sqrt(1/2).
    g = in_states(group(trajectory(1, [(), ()]), trajectory(-1, [(), ()])), "ab", "ac")
    assign_advantages([g], rule("grouped_gae", step_weight=0.0, options={"discount": 1.0, "lam": 0.0}))
    root = math.sqrt(2)
    assert advantages(g) == [[pytest.approx(root), pytest.approx(0)], [pytest.approx(-root), pytest.approx(0)]]


def test_grouped_gae_with_lambda_one_is_the_return_against_the_states_value():
    # gamma 1, lambda 1: 1 - 0 and 1 - 1; -1 - 0 and -1 + 1: the same numbers as with lambda 0 here.
    g = in_states(group(trajectory(1, [(), ()]), trajectory(-1, [(), ()])), "ab", "ab")
    assign_advantages([g], rule("grouped_gae", step_weight=0.0, options={"discount": 1.0, "lam": 1.0}))
    assert advantages(g) == [[pytest.approx(1.0)] * 2, [pytest.approx(-1.0)] * 2]  # V(a) = V(b) = 0


def test_the_environments_score_can_take_the_outcomes_place():
    g = outcomes(1, -1)
    for t, reward in zip(g.trajectories, (0.25, 0.75), strict=True):
        t.score = Score(success=t.success, reward=reward)
    assign_advantages([g], rule("leave_one_out", step_weight=0.0, reward="score"))
    assert advantages(g) == [[-0.5], [0.5]]


def test_a_score_without_a_reward_is_refused_by_the_key_that_asks_for_it():
    with pytest.raises(ConfigError, match="algorithm.reward: found score, but the environment of task q gives no"):
        assign_advantages([outcomes(1, -1)], rule("trajectory", reward="score"))


def first_turn_only(group, config, *, scale: float = 1.0):
    for t in group.valid:
        t.turns[0].advantage = scale * t.reward


def of_many_groups(groups, config):
    for g in groups:
        first_turn_only(g, config)


def test_a_rule_of_ones_own_is_named_by_module_and_function():
    g = outcomes(1, -1)
    assign_advantages([g], rule(f"{__name__}:first_turn_only", step_weight=0.0, options={"scale": 2}))
    assert advantages(g) == [[2.0], [-2.0]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"advantage": "step_indx"}, "algorithm.advantage: found 'step_indx', .*did you mean step_index"),
        ({"advantage": "no_such_module:rule"}, "algorithm.advantage: .*importing no_such_module fails"),
        ({"advantage": f"{__name__}:first_turn"}, "defines no first_turn; did you mean .*:first_turn_only"),
        (
            {"advantage": f"{__name__}:of_many_groups"},
            r"task q: .*test_advantages.py, line \d+: TypeError: .*one group",
        ),
        ({"advantage": "separate", "options": {"discount": 1}}, "algorithm.options.discount: unknown.* step_discount"),
        ({"advantage": "trajectory", "options": {"x": 1}}, "algorithm.options.x: unknown; known keys there: none"),
        ({"advantage": "separate", "options": {"step_discount": "much"}}, "options.step_discount: found 'much'"),
        ({"advantage": "separate", "options": {"step_discount": 1.5}}, "step_discount: found 1.5, expected a number"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused_by_key(fields, message):
    with pytest.raises(ConfigError, match=message):
        assign_advantages([outcomes(1, -1)], AlgorithmConfig(**fields))
