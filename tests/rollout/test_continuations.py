"""Advantages measured by continuations, on environments whose chances of success are known."""

import asyncio
import itertools
import math
from collections import Counter
from dataclasses import replace

import pytest
from builders import config_of, trajectory

from rlanything.algorithm.advantages import assign_advantages
from rlanything.config.schema import AlgorithmConfig, RewardConfig, RolloutConfig
from rlanything.domains.alfworld.domain import AlfworldDomain
from rlanything.domains.base import Env, Observation, ParsedAction
from rlanything.errors import RunError
from rlanything.rollout.collect import Batch, Collector
from rlanything.rollout.continuations import Continuations, Measured, chance
from rlanything.rollout.episode import Player
from rlanything.rollout.judging import Judge
from rlanything.runs.store import read_groups, write_groups
from rlanything.types import Image, Score

ROLLOUT = RolloutConfig(max_interaction_step=3, max_response_tokens=8, num_retry=0, history="paper")


class FirstTurnDecides(Env):
    """Solved if the first of three responses is of even length."""

    def __init__(self):
        self.lengths = []

    async def reset(self):
        return Observation(text="room")

    async def step(self, action):
        self.lengths.append(len(action))
        return Observation(text="room", done=len(self.lengths) == 3)

    async def score(self, last):
        return Score(success=self.lengths[0] % 2 == 0)

    async def close(self):
        pass


class Restless(FirstTurnDecides):
    """Says something else each time."""

    count = itertools.count()

    async def step(self, action):
        await super().step(action)
        return Observation(text=f"room {next(self.count)}", done=len(self.lengths) == 3)


def domain_of(world, env):
    domain = AlfworldDomain(config_of("alfworld", world.games))
    domain.make_env = lambda task: env()
    domain.parse_action = lambda text, observation: ParsedAction(action=text)
    return domain


def measured(world, model, env, num=8, images=None):
    domain = domain_of(world, env)

    async def run():
        player = Player(domain, model, ROLLOUT, "seed", Judge())
        played = await player.group(domain.tasks("train")[0], 6, lambda: None)
        for turn in played.trajectories[0].turns[1:2] if images else ():
            turn.prompt = replace(turn.prompt, images=images)
        return played, await Continuations(domain, model, ROLLOUT, num, "seed").measure(played)

    return asyncio.run(run())


@pytest.mark.parametrize("num", [1, 3, 8])
def test_a_turn_that_decides_has_the_whole_advantage_and_those_after_it_none(world, model, num):
    played, turns = measured(world, model, FirstTurnDecides, num)
    assert len({t.success for t in played.valid}) == 2 and len(turns) == 6 * 3
    for m in turns:
        solved = float(played.trajectories[m.place[0]].success)
        assert chance(*m.after) == solved and sum(counts.total() for counts in m.before) == num
        assert chance(*m.before) == solved if m.place[1] else 0 <= chance(*m.before) <= 1
        assert m.advantage == pytest.approx(solved - chance(*m.before))
    assert num < 8 or 0 < chance(*turns[0].before) < 1


def test_halves_of_different_size_weigh_by_their_continuations_and_a_lost_one_hides_nothing():
    turn = trajectory(1, [()]).turns[0]
    over, before = (Counter([True]), Counter([True])), (Counter({True: 1, False: 1}), Counter([False]))
    m = Measured(task="q", turn=turn, place=(0, 0), before=before, after=over)
    assert m.advantage == pytest.approx(1 - 1 / 3) and (m.half(0), m.half(1)) == (0.5, 1.0)
    lost = Measured(task="q", turn=turn, place=(0, 0), before=(Counter([True, False]), Counter()), after=over)
    assert lost.advantage == 0.5 and math.isnan(lost.half(1))


def test_an_environment_that_does_not_repeat_itself_is_refused_by_name(world, model):
    with pytest.raises(
        RunError, match=r"turn 0 of an episode that is played anew .* expected an environment that repeats itself"
    ):
        measured(world, model, Restless)


def test_a_screenshot_that_differs_is_noticed(world, model):
    other = [Image(digest="other", path="other.png", start=0, rows=1, columns=1)]
    with pytest.raises(RunError, match="turn 1 of an episode that is played anew"):
        measured(world, model, FirstTurnDecides, images=other)


def test_a_measured_judge_gives_each_turn_its_advantage_and_the_store_keeps_it(world, model, tmp_path):
    domain, config = domain_of(world, FirstTurnDecides), config_of("alfworld", world.games)
    config.reward = RewardConfig(judge="measured", num_evaluation=8)
    [task] = domain.tasks("train")[:1]
    batch = Batch(tasks=[task], num=6, seed="seed", rollout=ROLLOUT)
    [played] = asyncio.run(Collector(domain, model, None, config).groups(batch, lambda: None))
    write_groups(tmp_path / "groups.parquet", [played], domain.describe, domain.kind)
    [read] = read_groups(tmp_path / "groups.parquet", {task.id: task})
    assign_advantages([read], AlgorithmConfig(advantage="process", outcome_weight=0.0))
    assert [j.scores for j in read.judgements] == [j.scores for j in played.judgements]
    [start] = {round(t.success - t.turns[0].signal, 6) for t in read.valid}
    assert 0 < start < 1, "of success before the first turn, which all episodes share"
    for t in read.valid:
        first, *later = t.turns
        assert [turn.signal for turn in later] == [0, 0] and (first.advantage > 0) == t.success
    assert {len(j.response_ids) for j in played.judgements} == {0}, "nothing that a reward model could train on"


def test_what_is_not_judged_is_not_measured(world, model):
    domain, config = domain_of(world, FirstTurnDecides), config_of("alfworld", world.games)
    config.reward = RewardConfig(judge="measured", num_evaluation=8)
    batch = Batch(tasks=domain.tasks("train")[:1], num=2, seed="seed", rollout=ROLLOUT, judged=False)
    [played] = asyncio.run(Collector(domain, model, None, config).groups(batch, lambda: None))
    assert played.judgements == []
