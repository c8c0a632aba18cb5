"""Gymnasium's environments as a domain: its own games, and spaces of every kind."""

import asyncio
import enum
import threading
from string import printable

import gymnasium
import numpy as np
import pytest
from builders import config_of
from gymnasium import spaces

from rlanything.domains.gymnasium.texts import observed, plain, read_action, without_colours
from rlanything.domains.parts import RejectedTask
from rlanything.domains.registry import make_domain
from rlanything.errors import ConfigError, TaskError
from rlanything.types import Direction

LAKE = {"id": "FrozenLake-v1", "arguments": {"map_name": "4x4", "is_slippery": False}}


class Secret(gymnasium.Env):
    """A word is to be said; the observation is a dict, and only `info` tells success."""

    observation_space = spaces.Dict({"hint": spaces.Text(20, charset=printable), "tries": spaces.Discrete(9)})
    action_space = spaces.Text(20)

    def __init__(self, word="mug"):
        if not word:
            raise ValueError("the word is empty")
        self.word = word

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.tries = 0
        return {"hint": f"{len(self.word)} letters", "tries": np.int64(0)}, {}

    def step(self, action):
        self.tries += 1
        right = action == self.word
        return {"hint": "yes" if right else "no", "tries": np.int64(self.tries)}, -1.0, right, False, {"found": right}


class Named(enum.IntEnum):
    """In another order than the numbers, and with more than the space has."""

    leap = 1
    stay = 0
    fly = 2


class Masked(gymnasium.Env):
    """Actions have names of the environment's own, and not all are possible."""

    observation_space, action_space, actions = spaces.Discrete(5), spaces.Discrete(2), Named

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 3, {"action_mask": np.array([0, 1], np.int8)}

    def step(self, action):
        return 4, float(action), True, False, {}


gymnasium.register("Secret-v0", Secret)
gymnasium.register("Masked-v0", Masked)


def domain(prompt="full", **options):
    config = config_of("gymnasium", **options)
    config.dataset.prompt = prompt
    return make_domain(config)


def play(domain, *responses, task=None):
    """(observations, score) of an episode."""

    async def run():
        env = domain.make_env(task or domain.tasks("train")[0])
        seen = [await env.reset()]
        for response in responses:
            seen.append(await env.step(domain.parse_action(response, seen[-1]).action))
        score = await env.score(seen[-1])
        await env.close()
        return seen, score

    return asyncio.run(run())


def test_a_game_of_the_library_is_played_by_the_names_of_its_actions():
    lake = domain(**LAKE)
    assert "one of: left, down, right, up" in lake.system
    seen, score = play(lake, "down", "so: \\boxed{Down.}", "fly", "right", "right", "down", "right")
    assert seen[0].text.startswith("S(on red)FFF") and seen[0].actions == ("left", "down", "right", "up")
    assert seen[3].invalid and "'fly', expected one of left" in seen[3].text and seen[4].text.startswith("  (Right)")
    assert seen[-1].done and score.success and score.reward == 1.0
    fallen, score = play(lake, "down", "right")
    assert fallen[-1].done and not score.success and score.reward == 0.0


def test_a_task_is_a_seed_and_splits_share_none():
    taxi = domain(id="Taxi-v4", num_task=40)
    again, others = domain(id="Taxi-v4", num_task=40).tasks("train"), taxi.tasks("eval_in_distribution")
    assert taxi.tasks("train") == again and not {t.payload["seed"] for t in again} & {t.payload["seed"] for t in others}
    first, second = (play(taxi, task=taxi.tasks("train")[i])[0][0].text for i in (0, 1))
    assert first != second and first == play(taxi)[0][0].text
    assert "(magenta)" in first and "(blue)" in first, "colours alone tell passenger and destination"


def test_spaces_of_texts_and_dicts_need_no_names():
    secret = domain(id="Secret-v0", success="found", observation="{hint} ({tries} tries)")
    seen, score = play(secret, "cup", "mug")
    assert [o.text for o in seen] == ["3 letters (0 tries)", "no (1 tries)", "yes (2 tries)"]
    assert score.success and score.reward == -2.0
    assert play(domain(id="Secret-v0"), "mug")[0][0].text == "3 letters", "the only text is shown"
    assert not play(domain(id="Secret-v0"), "mug")[1].success, "the last reward was below 0"


@pytest.mark.parametrize(
    ("success", "start", "solved"), [("done", 1.0, True), ("return", -1.0, True), ("return", 0.0, False)]
)
def test_what_solves_a_task_is_a_choice(success, start, solved):
    assert play(domain(id="Secret-v0", success=success, success_from=start), "mug")[1].success is solved


def test_actions_that_are_not_possible_now_are_left_out_of_the_list():
    seen, _ = play(domain(id="Masked-v0"), "leap")
    assert seen[0].actions == ("leap",) and seen[0].text == "3\nPossible now: leap."
    assert play(domain(id="Masked-v0", actions=["wait", "jump"]), "jump")[1].success


def test_without_the_long_prompt_there_is_no_system_message():
    lake = domain("compact", **LAKE)
    [opening] = lake.opening(lake.tasks("train")[0], play(lake)[0][0])
    assert opening["role"] == "user"


@pytest.mark.parametrize(
    ("space", "text", "expected"),
    [
        (spaces.MultiDiscrete([2, 3]), "[1, 2]", [1, 2]),
        (spaces.Box(-1, 1, (2,), np.float32), "[0.5, -1]", [0.5, -1]),
        (spaces.Tuple([spaces.Discrete(2), spaces.Text(3)]), '[1, "ab"]', [1, "ab"]),
        (spaces.Box(-1, 1, (2,), np.float32), "[2, 0]", None),
        (spaces.Box(-1, 1, (2,), np.float32), '"x"', None),
        (spaces.MultiDiscrete([2, 3]), "left", None),
        (spaces.Text(3), "abcdef", None),
    ],
)
def test_actions_of_other_spaces_are_json(space, text, expected):
    if expected is None:
        with pytest.raises(ValueError):
            read_action(space, (), text)
    else:
        assert space.contains(found := read_action(space, (), text)) and plain(found) == expected


def test_colours_become_words_and_nothing_else_changes():
    assert without_colours("a\x1b[43mb\x1b[0mc\x1b[34;1md\x1b[0m\x1b[0;39me\x1b[0m") == "ab(on yellow)cd(blue)e"
    with pytest.raises(TypeError, match="object has no form as text"):
        plain({"x": object()})
    blackjack = gymnasium.make("Blackjack-v1")
    assert observed(blackjack, (np.int64(11), 10, 0), "") == "[11, 10, 0]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "nosuchmodule:Foo-v0"}, "importing nosuchmodule fails"),
        ({"id": "FrozenLake-v99"}, "id=FrozenLake-v99: .*v1"),
        ({"id": "FrozenLakes-v1"}, "Did you mean"),
        ({"id": "FrozenLake-v1", "arguments": {"maps": 1}}, "unexpected keyword argument 'maps'"),
        ({"id": "FrozenLake-v1", "arguments": {"map_name": "9x9"}}, "id=FrozenLake-v1: '9x9'"),
        ({"id": "FrozenLake-v1", "actions": ["go"]}, "found 1 names, but the actions of FrozenLake-v1 are Discrete"),
        ({"id": "Secret-v0", "actions": ["go"]}, "found 1 names, but .* Text"),
        (
            {"id": "Secret-v0", "observation": "{colour}"},
            r"id=Secret-v0: its first observation (.|\n)*KeyError.*give a template",
        ),
        ({}, "dataset.options.id: found nothing"),
    ],
)
def test_what_cannot_be_played_is_named_before_models_are_loaded(options, message):
    with pytest.raises((TaskError, ConfigError), match=message):
        domain(**options)


def test_the_rewriter_changes_arguments_and_only_what_the_environment_takes():
    secret = domain(id="Secret-v0", arguments={"word": "mug"})
    [task, *_] = secret.tasks("train")
    assert '"word": "mug"' in secret.rewriting.messages(task, Direction.HARDER, 1.0, "")[-1]["content"]
    new = secret.rewriting.parse('{"word": "teapot", "seed": 7}', task, Direction.HARDER, "q")
    assert asyncio.run(secret.rewriting.prove(new)) is new
    assert play(secret, "teapot", task=new)[0][-1].done and secret.describe(new) == "Secret-v0, word=teapot, seed=7"
    empty = secret.rewriting.parse('{"word": "", "seed": 7}', task, Direction.HARDER, "q")
    with pytest.raises(RejectedTask, match="the word is empty"):
        asyncio.run(secret.rewriting.prove(empty))
    with pytest.raises(RejectedTask, match="seed: -1, expected a whole number"):
        secret.rewriting.parse('{"word": "cup", "seed": -1}', task, Direction.HARDER, "q")


def test_a_reset_that_hangs_is_refused_in_time_and_holds_nobody_up(monkeypatch):
    hung = threading.Event()
    secret = domain(id="Secret-v0", arguments={"word": "mug"})
    secret.config.rollout.env_timeout_s = 0.2
    monkeypatch.setattr(Secret, "reset", lambda self, **keys: hung.wait(60))
    with pytest.raises(RejectedTask, match="TimeoutError"):
        asyncio.run(asyncio.wait_for(secret.rewriting.prove(secret.tasks("train")[0]), 20))
    hung.set()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gymnasium", None)
    with pytest.raises(TaskError, match=r'pip install -e "\.\[gymnasium\]"'):
        domain(**LAKE)
