"""Which episodes of a group train: GRPO-RoC's selection, truncated episodes, and void ones."""

from dataclasses import replace

import pytest
from builders import group, trajectory

from rlanything.algorithm.advantages import assign_advantages, episode_reward
from rlanything.algorithm.samples import policy_samples
from rlanything.algorithm.selection import fault_share, resample_on_correct
from rlanything.algorithm.shaping import shaping
from rlanything.config.schema import AlgorithmConfig
from rlanything.types import Status


def episode(outcome, *faulty):
    made = trajectory(outcome, [()] * len(faulty))
    for turn, fault in zip(made.turns, faulty, strict=True):
        turn.results = ("exception",) if fault else ("ok",)
    return made


def test_the_share_of_faulty_turns_counts_invalid_turns_and_checks_that_failed():
    made = episode(1, True, False, False, False)
    made.turns[1].invalid = True
    assert fault_share(made) == 0.5 and fault_share(trajectory(1, [])) == 0.0


def test_solved_episodes_stay_in_their_share_and_the_cleanest_are_kept():
    clean, half, dirty = episode(1, False, False), episode(1, True, False), episode(1, True, True)
    failed = [episode(-1, True), episode(-1, False), episode(-1, False)]
    mixed = [dirty, failed[0], half, failed[1], clean, failed[2]]
    # 3 of 6 are solved, so round(4 * 3 / 6) = 2 of the 4 that are kept; of the failed ones the first 2.
    assert resample_on_correct(mixed, AlgorithmConfig(keep=4)) == [failed[0], half, failed[1], clean]
    assert resample_on_correct(mixed, AlgorithmConfig(keep=6)) == mixed and resample_on_correct(
        [clean, half, dirty], AlgorithmConfig(keep=1)
    ) == [clean]
    assert resample_on_correct(failed, AlgorithmConfig(keep=2)) == failed[:2]


@pytest.mark.parametrize(("solved", "failed", "keep"), [(1, 7, 4), (7, 1, 4), (2, 14, 4), (1, 15, 2)])
def test_rounding_leaves_no_group_without_a_difference(solved, failed, keep):
    episodes = [*(episode(1, False) for _ in range(solved)), *(episode(-1, False) for _ in range(failed))]
    kept = resample_on_correct(episodes, AlgorithmConfig(keep=keep))
    assert len(kept) == keep and 0 < sum(t.success for t in kept) < keep


def test_episodes_that_are_not_kept_enter_no_baseline_and_no_update():
    config = AlgorithmConfig(advantage="trajectory", step_weight=0.0, keep=4, band=[0.0, 1.0])
    made = group(*(episode(1, i > 1) for i in range(4)), *(episode(-1, False) for _ in range(4)))
    assign_advantages([made], config)
    advantages = [t.turns[0].advantage for t in made.trajectories]
    assert advantages == [1.0, 1.0, None, None, -1.0, -1.0, None, None]
    assert len(policy_samples([made], [0.0, 1.0], "token")) == 4


@pytest.mark.parametrize(
    ("truncated", "advantages"),
    [
        ("grade", [2**-0.5, 2**-0.5, -(2**0.5)]),  # rewards 1, 1, -1: mean 1/3, deviation sqrt(8)/3
        ("wrong", [2**0.5, -(2**-0.5), -(2**-0.5)]),
        ("drop", [1.0, None, -1.0]),
    ],
)
def test_truncated_episodes_are_graded_or_wrong_or_left_out(truncated, advantages):
    made = group(episode(1, False), episode(1, False), episode(-1, False))
    made.trajectories[1].status = Status.TRUNCATED
    assign_advantages([made], AlgorithmConfig(advantage="trajectory", step_weight=0.0, truncated=truncated))
    found = [t.turns[0].advantage for t in made.trajectories]
    assert [a if a is None else pytest.approx(a) for a in advantages] == found


def test_void_episodes_stay_in_the_baseline_and_leave_the_update():
    made = group(episode(1, False, False), episode(-1, False, False), episode(-1, False))
    made.trajectories[1].turns[1].action = None
    trained = AlgorithmConfig(advantage="trajectory", step_weight=0.0)
    assign_advantages([made], trained)
    before = [t.turns[0].advantage for t in made.trajectories]
    assign_advantages([made], trained.model_copy(update={"void": "mask"}))
    assert [t.turns[0].advantage for t in made.trajectories] == [before[0], None, before[2]]
    assert made.trajectories[1].turns[1].advantage is None


def test_a_truncated_episode_is_a_failure_in_every_reward():
    made = trajectory(1, [()])
    made.status, made.score = Status.TRUNCATED, replace(made.score, reward=0.7)
    for reward, expected in (("outcome", -1.0), ("score", 0.0)):
        one = group(made)
        assign_advantages([one], AlgorithmConfig(reward=reward, truncated="wrong", step_weight=0.0))
        assert one.trajectories[0].reward == expected


def test_a_truncated_episode_that_counts_as_wrong_is_shaped_and_kept_as_a_failure():
    cut, right, wrong = (episode(outcome, False, False) for outcome in (1, 1, -1))
    cut.status = Status.TRUNCATED
    for made in (cut, right, wrong):
        made.turns[0].kind = "call"
    config = AlgorithmConfig(truncated="wrong", call_bonus=0.1, turn_cost=0.05, step_weight=0.0, keep=2)
    terms = [shaping(made, config) for made in (cut, right, wrong)]
    assert terms[0] == terms[2] == {"calls": pytest.approx(0.1), "turns": 0.0} != terms[1]
    assert episode_reward(cut, config) == episode_reward(wrong, config) == pytest.approx(-0.9)
    assert resample_on_correct([cut, right, wrong], config) == [cut, right]
