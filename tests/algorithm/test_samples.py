"""Which turns and evaluations become samples, and that a sample holds exactly what was sampled."""

import numpy as np
from builders import group, trajectory, turn

from rlanything.algorithm.advantages import assign_advantages
from rlanything.algorithm.consistency import assign_consistency
from rlanything.algorithm.samples import make_sample, num_level, policy_samples, reward_samples
from rlanything.config.schema import AlgorithmConfig, RewardConfig
from rlanything.types import Status


def test_a_sample_trains_the_response_alone():
    s = make_sample(turn(), 1.5, "response", "k")
    assert s.ids.tolist() == [1, 2, 3, 4, 5]
    assert s.weights.tolist() == [0, 0, 0, 0.5, 0.5]
    assert s.advantages.tolist() == [0, 0, 0, 1.5, 1.5]
    np.testing.assert_allclose(s.logprobs, [0, 0, 0, -0.1, -0.2])
    assert make_sample(turn(), 1, "token", "k").weights.tolist() == [0, 0, 0, 1, 1]


def test_a_dropped_turn_never_shifts_another_turns_advantage():
    g = group(trajectory(1, [(1,), (None,), (1,)]), trajectory(-1, [(1,), (1,), (-1,)]))
    assign_advantages([g], AlgorithmConfig())
    got = [s.advantages[-1] for s in policy_samples([g], [0.0, 1.0], "response")]
    expected = [turn.advantage for t in g.trajectories for turn in t.turns if turn.advantage]
    np.testing.assert_allclose(got, expected)
    assert len(got) == 4, (
        "two alike at the first index, a turn that nobody judged and one that nothing is compared with"
    )


def test_a_turn_at_its_baseline_is_counted_and_not_trained():
    g = group(trajectory(1, [(1,), (1,)]), trajectory(-1, [(1,)]))  # the second index was reached once: advantage 0
    assign_advantages([g], AlgorithmConfig())
    assert [t.advantage for t in g.trajectories[0].turns][1] == 0.0
    assert len(policy_samples([g], [0.0, 1.0], "response")) == 2 and num_level([g], [0.0, 1.0]) == 1
    assert num_level([g], [0.6, 1.0]) == 0, "the group does not train at all"


def test_groups_outside_the_band_and_broken_episodes_train_nothing():
    solved = group(trajectory(1, [(1,)]), trajectory(1, [(1,)]))
    mixed = group(trajectory(1, [(1, -1)]), trajectory(-1, [(1, -1)]), trajectory(1, [(1, 1)], status=Status.ENV_ERROR))
    for g in (solved, mixed):
        assign_advantages([g], AlgorithmConfig())
        assign_consistency([g], RewardConfig())
    assert len(policy_samples([solved, mixed], [0.125, 0.875], "response")) == 2
    assert len(reward_samples([solved, mixed], [0.2, 0.8], "response")) == 4


def test_a_vote_equal_to_its_baseline_is_not_trained():
    g = group(trajectory(1, [(1, 1, 1)]), trajectory(-1, [(1, 1, -1)]))
    assign_advantages([g], AlgorithmConfig())
    assign_consistency([g], RewardConfig(group="step"))
    assert len(reward_samples([g], [0, 1], "response")) == 3
