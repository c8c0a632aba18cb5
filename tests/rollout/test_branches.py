"""Episodes that go on from a state of an earlier one, on environments whose chances are known."""

import asyncio
import itertools

import pytest
from builders import config_of, diagnostics

from rlanything.config.schema import RewardConfig, RolloutConfig
from rlanything.domains.alfworld.domain import AlfworldDomain
from rlanything.domains.base import Env, Observation, ParsedAction
from rlanything.engines.chat_model import ChatModel
from rlanything.evaluation.play import evaluation_rollout
from rlanything.rollout.collect import Batch, Collector
from rlanything.rollout.digest import digest
from rlanything.runs.store import read_groups, write_groups
from rlanything.types import Score

ROLLOUT = RolloutConfig(max_interaction_step=4, max_response_tokens=8, num_retry=0, num_branch=4)


class EvenTurns(Env):
    """A turn is progress if its response is of even length. Four in a row solve the task."""

    def __init__(self):
        self.even = []

    async def reset(self):
        return Observation(text="room")

    async def step(self, action):
        self.even.append(len(action) % 2 == 0)
        label = 1 if all(self.even) else -1
        return Observation(text="room", label=label, done=len(self.even) == 4)

    async def score(self, last):
        return Score(success=all(self.even))

    async def close(self):
        pass


class Restless(EvenTurns):
    """Says something else each time."""

    count = itertools.count()

    async def step(self, action):
        seen = await super().step(action)
        return Observation(text=f"room {next(self.count)}", label=seen.label, done=seen.done)


class LaterRestless(EvenTurns):
    """Says something else each time from the second turn on."""

    async def step(self, action):
        seen = await super().step(action)
        text = f"room {next(Restless.count)}" if len(self.even) > 1 else "room"
        return Observation(text=text, label=1, done=seen.done)


class Counting:
    """An engine that counts what is asked of it."""

    def __init__(self, engine):
        self.engine, self.version, self.asked = engine, 0, 0

    async def generate(self, *args, **kwargs):
        self.asked += 1
        return await self.engine.generate(*args, **kwargs)


def play(world, model, env=EvenTurns, reward=None, judge=None, rollout=ROLLOUT):
    domain = AlfworldDomain(config_of("alfworld", world.games))
    domain.make_env = lambda task: env()
    domain.parse_action = lambda text, observation: ParsedAction(action=text)
    config = config_of("alfworld", world.games)
    config.reward = reward or RewardConfig(judge="label", num_evaluation=2)
    config.algorithm.advantage, config.algorithm.step_weight = "segments", 0.0
    config.algorithm.band = config.reward.band = [0.0, 1.0]
    counting = Counting(model.engine)
    batch = Batch(tasks=domain.tasks("train")[:3], num=8, seed="seed", rollout=rollout)
    collector = Collector(domain, ChatModel(counting, model.chat), judge, config)
    return asyncio.run(collector.groups(batch, lambda: None)), counting, domain, config


def test_what_led_to_a_state_is_repeated_and_not_sampled_again(world, model):
    groups, counting, _, _ = play(world, model)
    branches = [t for g in groups for t in g.trajectories if t.origin is not None]
    assert len(branches) == 3 * 4 and all([t.index for t in g.trajectories] == list(range(8)) for g in groups)
    for g in groups:
        for t in g.trajectories:
            if t.origin is None:
                assert t.begun == 0 and t.index < 4
                continue
            before = g.trajectories[t.origin]
            assert 0 < t.begun < 4 and t.origin < t.index and not before.success
            for mine, first in zip(t.turns[: t.begun], before.turns, strict=False):
                assert (mine.prompt, mine.response_ids, mine.logprobs) == (
                    first.prompt,
                    first.response_ids,
                    first.logprobs,
                )
            # The label judge's signals are +1 as long as the task can be solved.
            assert sum(turn.label for turn in t.turns[: t.begun]) == max(
                sum(turn.label for turn in before.turns[:i]) for i in range(1, len(before.turns))
            )
    assert counting.asked == sum(len(t.own) for g in groups for t in g.trajectories)
    assert counting.asked < sum(len(t.turns) for g in groups for t in g.trajectories)


def test_a_judgement_covers_the_episodes_that_repeat_its_turn(world, model):
    [g, *_], _, _, _ = play(world, model, reward=RewardConfig(num_evaluation=2, max_response_tokens=6), judge=model)
    assert len(g.judgements) == 2 * sum(len(t.own) for t in g.trajectories), "a repeated turn is judged once"
    for t in g.trajectories:
        for i in range(len(t.turns)):
            found = [j for j in g.judgements if (t.index, i) in j.scores]
            assert len(found) == 2
            if i < t.begun:
                assert all(j.scores[t.index, i] == j.scores[t.origin, i] for j in found)


def test_where_the_environment_answers_in_another_way_the_policy_goes_on(world, model):
    groups, _, _, _ = play(world, model, env=Restless)
    assert all(len(g.valid) == 8 and all(t.turns and t.origin is None for t in g.valid) for g in groups)
    later, _, _, _ = play(world, model, env=LaterRestless)
    branches = [t for g in later for t in g.trajectories if t.origin is not None]
    assert branches and {t.begun for t in branches} == {1}, "the second answer differs"
    assert len({t.turns[1].observation for t in branches}) == len(branches)


def test_figures_count_a_repeated_turn_once_and_success_from_the_beginning(world, model):
    groups, _, _, _ = play(world, model)
    found = diagnostics(groups)
    whole = [t.success for g in groups for t in g.trajectories if t.origin is None]
    assert found["success_rate"] == pytest.approx(sum(whole) / 12)
    own = [len(turn.response_ids) for g in groups for t in g.trajectories for turn in t.own]
    assert found["response_tokens"] == pytest.approx(sum(own) / 24)
    begun = [t.begun for g in groups for t in g.trajectories if t.origin is not None]
    assert found["branches"] == len(begun) == 12 and found["repeated_turns"] == pytest.approx(sum(begun) / 12)


def test_the_store_keeps_who_went_on_from_where_and_the_digest_trains_on_it(world, model, tmp_path):
    groups, _, domain, config = play(world, model)
    sets = [digest(g, domain, config, trains=True).sets["policy"] for g in groups]
    assert any(sets) and all(s.key.endswith(("/0", "/1", "/2", "/3")) for found in sets for s in found)
    write_groups(tmp_path / "groups.parquet", groups, domain.describe, domain.kind)
    read = read_groups(tmp_path / "groups.parquet", {})
    places = [[(t.index, t.origin, t.begun) for t in g.trajectories] for g in groups]
    assert [[(t.index, t.origin, t.begun) for t in g.trajectories] for g in read] == places


def test_evaluations_begin_every_episode_at_the_beginning(world):
    config = config_of("alfworld", world.games)
    config.rollout.num_branch = 4
    assert evaluation_rollout(config).num_branch == 0
