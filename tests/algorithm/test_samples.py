"""Which turns and evaluations become samples, and that a sample holds exactly what was sampled."""

import numpy as np
from builders import group, trajectory

from rlanything.algorithm.advantages import assign_policy_advantages, assign_reward_advantages
from rlanything.algorithm.samples import make_sample, policy_samples, reward_samples
from rlanything.config.schema import AlgorithmConfig, RewardConfig
from rlanything.types import Status


def test_a_sample_trains_the_response_alone():
    s = make_sample([1, 2, 3], [4, 5], [-0.1, -0.2], 1.5, "response", "k")
    assert s.ids.tolist() == [1, 2, 3, 4, 5]
    assert s.weights.tolist() == [0, 0, 0, 0.5, 0.5]
    assert s.advantages.tolist() == [0, 0, 0, 1.5, 1.5]
    np.testing.assert_allclose(s.logprobs, [0, 0, 0, -0.1, -0.2])
    assert make_sample([1], [4, 5], [0, 0], 1, "token", "k").weights.tolist() == [0, 1, 1]


def test_a_dropped_turn_never_shifts_another_turns_advantage():
    g = group(trajectory(1, [(1,), (None,), (1,)]), trajectory(-1, [(1,), (1,), (-1,)]))
    assign_policy_advantages(g, AlgorithmConfig())
    got = [s.advantages[-1] for s in policy_samples([g], [0.0, 1.0], "response")]
    expected = [turn.advantage for t in g.trajectories for turn in t.turns if turn.advantage is not None]
    np.testing.assert_allclose(got, expected)
    assert len(got) == 5


def test_groups_outside_the_band_and_broken_episodes_train_nothing():
    solved = group(trajectory(1, [(1,)]), trajectory(1, [(1,)]))
    mixed = group(trajectory(1, [(1, -1)]), trajectory(-1, [(1, -1)]), trajectory(1, [(1, 1)], status=Status.ENV_ERROR))
    for g in (solved, mixed):
        assign_policy_advantages(g, AlgorithmConfig())
        assign_reward_advantages(g, RewardConfig())
    assert len(policy_samples([solved, mixed], [0.125, 0.875], "response")) == 2
    assert len(reward_samples([solved, mixed], [0.2, 0.8], "response")) == 4


def test_a_vote_equal_to_its_baseline_is_not_trained():
    g = group(trajectory(1, [(1, 1, 1)]), trajectory(-1, [(1, 1, -1)]))
    assign_policy_advantages(g, AlgorithmConfig())
    assign_reward_advantages(g, RewardConfig(group="step"))
    assert len(reward_samples([g], [0, 1], "response")) == 3
