"""Terms of an episode's reward, against numbers computed by hand."""

import pytest
from builders import group, trajectory

from rlanything.algorithm.advantages import assign_advantages
from rlanything.algorithm.shaping import call_bonus, num_tokens, overlong_penalty, shaping
from rlanything.config.schema import AlgorithmConfig
from rlanything.types import Prompt


def episode(outcome, calls, others=1, tokens=(3, 2)):
    """An episode of calls and other turns, with this many tokens in each prompt and response."""
    made = trajectory(outcome, [()] * (calls + others))
    for i, turn in enumerate(made.turns):
        turn.kind = "call" if i < calls else "answer"
        turn.prompt, turn.response_ids = Prompt(ids=[1] * (tokens[0] + i * sum(tokens))), [2] * tokens[1]
    return made


def test_by_default_nothing_is_shaped():
    assert shaping(episode(-1, 5, tokens=(9999, 9999)), AlgorithmConfig()) == {}


@pytest.mark.parametrize(("calls", "reward"), [(0, -1.0), (1, -0.9), (2, -0.8), (3, -0.7), (4, -0.6), (8, -0.6)])
def test_calls_of_a_failed_episode_earn_up_to_a_bound(calls, reward):
    config = AlgorithmConfig(call_bonus=0.1)
    assert -1 + call_bonus(episode(-1, calls), config) == pytest.approx(reward)
    assert call_bonus(episode(1, calls), config) == 0  # the published code
    everywhere = config.model_copy(update={"call_bonus_on": "all"})
    assert 1 + call_bonus(episode(1, calls), everywhere) == pytest.approx(1 + min(0.4, 0.1 * calls))  # its equation 8


def test_calls_that_were_not_executed_earn_nothing():
    made = episode(-1, 5)
    verdicts = [("ok",), ("exception",), ("no_calls_left",), ("unreadable", "no_calls_left"), ("unreadable", "ok")]
    for turn, results in zip(made.turns, verdicts, strict=False):
        turn.results = results
    made.turns[-1].kind, made.turns[-1].results = "unreadable", ("unreadable",)
    assert call_bonus(made, AlgorithmConfig(call_bonus=0.1)) == pytest.approx(0.3)  # the 1st, 2nd and 5th turn
    price = AlgorithmConfig(call_bonus=-0.1, call_bonus_on="all")
    assert call_bonus(made, price) == pytest.approx(-0.3)


def test_a_call_may_cost_something():
    config = AlgorithmConfig(call_bonus=-0.1, call_bonus_on="all")
    assert [call_bonus(episode(1, n), config) for n in (0, 1, 9)] == pytest.approx([0, -0.1, -0.4])


@pytest.mark.parametrize(
    ("tokens", "penalty"), [(100, 0), (16384, 0), (17408, -0.25), (18432, -0.5), (20480, -1), (24576, -2)]
)
def test_length_costs_from_the_buffer_on(tokens, penalty):
    config = AlgorithmConfig(overlong_limit=20480, overlong_buffer=4096)
    assert overlong_penalty(episode(1, 0, tokens=(7, tokens)), config) == pytest.approx(penalty)


def test_tool_output_counts_in_the_length_and_prompts_that_do_not_grow_do_not():
    assert num_tokens(episode(1, 2, tokens=(10, 5))) == 2 * 15 + 5
    anew = episode(1, 2, tokens=(10, 5))
    for turn in anew.turns:
        turn.prompt = Prompt(ids=[1] * 10)
    assert num_tokens(anew) == 15 and num_tokens(trajectory(1, [])) == 0


def test_turns_cost_in_solved_episodes_alone():
    config = AlgorithmConfig(turn_cost=0.05)
    assert shaping(episode(1, 0, others=6), config) == {"turns": pytest.approx(-0.3)}
    assert shaping(episode(-1, 0, others=6), config) == {"turns": 0.0}
    quick, slow, failed = made = [episode(1, 0, others=2), episode(1, 0, others=8), episode(-1, 0, others=1)]
    assign_advantages([group(*made)], AlgorithmConfig(advantage="trajectory", step_weight=0, turn_cost=0.05))
    assert [t.reward for t in made] == pytest.approx([0.9, 0.6, -1])
    assert quick.turns[0].advantage > slow.turns[0].advantage > 0 > failed.turns[0].advantage


def test_shaping_tells_apart_episodes_of_the_same_outcome():
    made = group(episode(-1, 0), episode(-1, 2), episode(-1, 4))
    assign_advantages([made], AlgorithmConfig(advantage="trajectory", step_weight=0, call_bonus=0.1))
    assert [t.reward for t in made.trajectories] == pytest.approx([-1, -0.8, -0.6])
    first, second, third = (t.turns[0].advantage for t in made.trajectories)
    assert first == pytest.approx(-third) and first < second < third and second == pytest.approx(0)
