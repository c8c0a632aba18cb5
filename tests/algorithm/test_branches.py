"""The choice of states to go on from, and the values of a group's tree, agree with numbers computed by hand."""

import math

import numpy as np
import pytest
from builders import group, summaries, trajectory
from hypothesis import given, settings
from hypothesis import strategies as st

from rlanything.algorithm.advantages import assign_advantages
from rlanything.algorithm.branches import Tree, choose, state_key
from rlanything.algorithm.samples import policy_samples, sample_sets
from rlanything.config.schema import AlgorithmConfig
from rlanything.types import Status


def episode(outcome, num_turn, origin=None, begun=0):
    """An episode of turns that all differ in their responses, but those that it repeats."""
    made = trajectory(outcome, [(1,)] * num_turn)
    made.origin, made.begun = origin, begun
    return made


def family(*episodes):
    """A group whose episodes share the turns that they repeat."""
    made = group(*episodes)
    for t in made.trajectories:
        for i, turn in enumerate(t.turns):
            turn.response_ids = [t.index, i]
        if t.origin is not None:
            for i in range(t.begun):
                turn = made.trajectories[t.origin].turns[i]
                t.turns[i].response_ids, t.turns[i].prompt = turn.response_ids, turn.prompt
    return made


@pytest.fixture
def tree():
    """Four episodes from the beginning, two that go on from the first one's second state, two from the last one's."""
    return family(
        episode(-1, 4), episode(-1, 2), episode(-1, 3), episode(1, 3),
        episode(1, 4, origin=0, begun=2), episode(-1, 5, origin=0, begun=2),
        episode(-1, 5, origin=5, begun=4), episode(1, 6, origin=5, begun=4),
    )  # fmt: skip


def test_a_state_has_the_mean_of_the_episodes_that_begin_in_it(tree):
    late = (0 + 1) / 2  # of episodes 6 and 7, which begin after four turns of episode 5
    fork = (1 + late) / 2  # of episodes 4 and 5, which begin after two turns of episode 0
    start = (fork + 0 + 0 + 1) / 4
    worths = Tree(tree.valid, lambda t: float(t.success)).worths()
    expected = {
        (0, 0): fork - start, (0, 1): fork - start, (0, 2): -fork, (0, 3): -fork, (1, 0): -start, (3, 2): 1 - start,
        (4, 2): 1 - fork, (4, 3): 1 - fork, (5, 2): late - fork, (5, 3): late - fork, (5, 4): -late, (6, 4): -late,
        (7, 4): 1 - late, (7, 5): 1 - late,
    }  # fmt: skip
    assert {place: worths[place] for place in expected} == pytest.approx(expected)
    assert len(worths) == sum(len(t.own) for t in tree.valid), "a repeated turn has no worth of its own"


def test_accuracy_counts_episodes_from_the_beginning_and_the_share_all(tree):
    assert tree.accuracy == 1 / 4 and tree.solved_share == 3 / 8
    [told] = summaries([tree])
    assert (told.num_valid, told.num_solved, told.num_branch) == (4, 1, 4)
    assert (told.accuracy, told.solved_share) == (1 / 4, 3 / 8)


def test_a_fork_of_a_repeated_turn_belongs_to_the_episode_that_sampled_it():
    g = family(episode(-1, 4), episode(-1, 4, origin=0, begun=2), episode(1, 4, origin=1, begun=1))
    worths = Tree(g.valid, lambda t: float(t.success)).worths()
    assert [worths[0, i] for i in range(4)] == [0, -1, 0, 0], "episode 2 began after episode 0's first turn, and won"
    assert worths[2, 1] == 0 and worths[1, 2] == 0


def test_an_episode_whose_origin_broke_is_left_out(tree):
    tree.trajectories[5].status = Status.JUDGE_ERROR
    assign_advantages([tree], AlgorithmConfig(advantage="segments"))
    assert {turn.advantage for t in tree.trajectories[5:] for turn in t.turns} == {None}
    spread = np.std([-1, -1, -1, 1, 1])  # of those that are left
    assert tree.trajectories[4].turns[2].advantage == 0 and tree.trajectories[0].turns[3].advantage == -2 / spread
    nobody = group(trajectory(1, [(1,)], status=Status.ENV_ERROR))
    assign_advantages([nobody], AlgorithmConfig(advantage="segments"))
    assert math.isnan(nobody.accuracy) and math.isnan(nobody.solved_share)


@given(st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from([-1, 1]), min_size=1, max_size=4)), min_size=1))
@settings(max_examples=50, deadline=None)
def test_without_branches_segments_are_grpo_and_the_steps_on_top(episodes):
    def with_rule(name, **fields):
        made = group(*(trajectory(1 if won else -1, [(s,) for s in scores]) for won, scores in episodes))
        assign_advantages([made], AlgorithmConfig(advantage=name, **fields))
        return [turn.advantage for t in made.trajectories for turn in t.turns]

    np.testing.assert_allclose(with_rule("segments", step_weight=0), with_rule("trajectory"), atol=1e-9)
    np.testing.assert_allclose(with_rule("segments", step_weight=0.5), with_rule("process", step_weight=0.5), atol=1e-9)


def test_each_turn_trains_once_and_the_episodes_of_a_tree_share_its_beginning(tree):
    assign_advantages([tree], AlgorithmConfig(advantage="segments", step_weight=0))
    assert all(turn.advantage is None for t in tree.trajectories for turn in t.turns[: t.begun])
    sets = sample_sets(policy_samples([tree], [0, 1], "token"))
    assert [s.key for s in sets] == ["q/0", "q/1", "q/2", "q/3"]
    assert [s.num for s in sets] == [4 + 2 + 3 + 1 + 2, 2, 3, 3]


def signals_of(tree, **scores):
    return {(int(name[1]), int(name[3])): score for name, score in scores.items()}


def test_unsolved_episodes_go_on_from_the_state_with_the_highest_sum_of_signals():
    g = family(episode(-1, 4), episode(1, 4), episode(-1, 4))
    scores = signals_of(g, e0t0=1.0, e0t1=1.0, e0t2=-1.0, e1t0=1.0, e1t1=1.0, e1t2=1.0, e2t0=-1.0, e2t1=0.5)
    starts = choose(g, scores, 2, "seed")
    assert [(s.origin.index, s.num_turn) for s in starts] == [(0, 2), (0, 2)], "episode 1 is solved"
    assert state_key(starts[0].turns) == ((0, 0), (0, 1))
    four = [(s.origin.index, s.num_turn) for s in choose(g, scores, 4, "seed")]
    assert four[:2] == [(0, 2), (0, 2)] and four[2:] in ([(2, 2), (2, 2)], [(2, 3), (2, 3)])
    assert choose(g, scores, 5, "seed")[4] is None, "two begin in each of two states, and the fifth anew"


def test_a_state_in_which_two_began_is_full():
    g = family(episode(-1, 4), episode(-1, 4), episode(-1, 3, origin=0, begun=2), episode(-1, 3, origin=0, begun=2))
    scores = {(e, i): 1.0 for e in (0, 2, 3) for i in range(2)} | {(0, 2): -1.0, (2, 2): -1.0, (3, 2): -1.0}
    assert [state_key(s.turns) for s in choose(g, scores, 2, "seed")] == [((0, 0),), ((0, 0),)], "not two turns"


def test_equal_states_are_drawn():
    g = family(episode(-1, 4), episode(-1, 4, origin=0, begun=3))
    drawn = {choose(g, {}, 1, f"seed{i}")[0].num_turn for i in range(40)}
    assert drawn == {1, 2, 3} and choose(g, {}, 1, "x") == choose(g, {}, 1, "x")


def test_nothing_to_go_on_from_begins_anew():
    assert choose(family(episode(1, 4), episode(-1, 1)), {}, 3, "seed") == [None] * 3
