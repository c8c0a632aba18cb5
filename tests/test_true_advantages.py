"""Advantages measured by continuations, on environments whose chances of success are known."""

import asyncio
import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import true_advantages
from builders import config_of, group, trajectory
from runs_helpers import small_config

from rlanything.config.load import to_yaml
from rlanything.config.schema import EngineConfig, ModelConfig, RolloutConfig
from rlanything.domains.alfworld.domain import AlfworldDomain
from rlanything.domains.base import Env, Observation, ParsedAction
from rlanything.engines import start_engine
from rlanything.engines.chat import Chat
from rlanything.engines.chat_model import ChatModel
from rlanything.errors import RunError
from rlanything.rollout.episode import Player
from rlanything.rollout.judging import Judge
from rlanything.types import Score

ENGINE = EngineConfig(kind="transformers", dtype="float32", max_model_len=512, max_num_seqs=32, kv_cache_gb=0.05)
ROLLOUT = RolloutConfig(max_interaction_step=3, max_response_tokens=8, num_retry=0, history="paper")


@pytest.fixture(scope="module")
def model(world, tmp_path_factory):
    config = ModelConfig(path=str(world.model))
    return ChatModel(
        start_engine(config, ENGINE, seed=0, log_path=tmp_path_factory.mktemp("logs") / "log"), Chat(config)
    )


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


def measured(world, model, env):
    domain = AlfworldDomain(config_of("alfworld", world.games))
    domain.make_env = lambda task: env()
    domain.parse_action = lambda text, observation: ParsedAction(action=text)
    config = config_of("alfworld", world.games).model_copy(update={"rollout": ROLLOUT})

    async def run():
        player = Player(domain, model, ROLLOUT, "seed", Judge())
        played = await player.group(domain.tasks("train")[0], 6, lambda: None)
        return played, await true_advantages.measure([played], domain, model, config, 8, lambda: None)

    return asyncio.run(run())


def test_a_turn_that_decides_has_the_whole_advantage_and_those_after_it_none(world, model):
    played, turns = measured(world, model, FirstTurnDecides)
    assert len({t.success for t in played.valid}) == 2 and len(turns) == 6 * 3
    for m in turns:
        solved = float(played.trajectories[m.place[0]].success)
        assert m.after == (solved, solved)
        assert m.before == (solved, solved) if m.place[1] else 0 < sum(m.before) < 2
        assert m.advantage == pytest.approx(solved - sum(m.before) / 2)


def test_an_environment_that_does_not_repeat_itself_is_refused_by_name(world, model):
    with pytest.raises(RunError, match=r"turn 1 has another prompt .* expected an environment that repeats itself"):
        measured(world, model, Restless)


def test_ranks_of_equal_values_are_their_mean_and_correlations_those_by_hand():
    assert true_advantages.ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [2.5, 0, 2.5, 1]
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 4.0, 9.0, 16.0])
    assert true_advantages.spearman(x, y) == pytest.approx(1)
    assert true_advantages.spearman(x, np.array([2.0, 1.0, 4.0, 3.0])) == pytest.approx(0.6)  # 1 - 6 * 4 / (4 * 15)
    assert np.isnan(true_advantages.spearman(x, np.ones(4)))


def test_a_signal_is_measured_on_the_turns_that_have_it_and_noise_lowers_what_can_be_reached():
    noisy, exact = np.random.default_rng(0), []
    for i in range(400):
        gain = (i % 5 - 2) / 4
        after = (gain + noisy.normal() / 4, gain + noisy.normal() / 4)
        turn = trajectory(1, [()]).turns[0]
        exact.append(
            true_advantages.Measured(task=f"q{i % 8}", turn=turn, place=(i, 0), before=(0.0, 0.0), after=after)
        )
    known = {(m.task, m.place): float(m.place[0] % 5) for m in exact[:200]}
    lines = true_advantages.table(exact, [("known", known), ("silent", {})])
    reached, found = (float(line.split("|")[2].split()[0]) for line in lines[2:])  # correlations
    assert len(lines) == 4 and lines[3].endswith("| 200 |")
    assert 0.8 < reached < 0.97 and found == pytest.approx(reached, abs=0.06)


def test_the_probability_of_a_vote_is_that_of_its_box_and_of_no_remark(model):
    chat = model.chat
    ids = chat.response_ids("so \\boxed{-1}")
    start = next(i for i in range(len(ids)) if len(chat.response_text(ids[: i + 1])) > 3)
    made = group(trajectory(1, [[-1]]))
    [vote] = made.judgements
    vote.text, vote.response_ids = chat.response_text(ids), ids
    vote.logprobs = [-5.0 if i < start else np.log(0.8) if i == start else 0.0 for i in range(len(ids))]
    assert true_advantages.probabilities([made], chat) == {("q", (0, 0)): pytest.approx(0.2)}
    for due in ("print(3)", "\\boxed{184}"):  # of a judge whose vote is a comparison
        vote.text = due
        assert true_advantages.probabilities([made], chat) == {}


@pytest.mark.integration
def test_the_script_measures_a_run_and_keeps_every_turn(world, tmp_path):
    config = small_config(world.games, world.model, tmp_path, "measured")
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config))
    script = Path(true_advantages.__file__)
    line = [sys.executable, str(script), "--tasks", "2", "--continuations", "2", f"config={file}"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| a perfect one, measured as well |" in done.stdout and "steps labelled -1:" in done.stdout
    rows = [json.loads(row) for row in (tmp_path / "measured/turns.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 2 * 3 and all("the labels" in row["signals"] for row in rows)
