"""Episodes as coroutines, with the real small engine, and environments that misbehave."""

import asyncio
import shutil

import builders
import pytest
from builders import config_of, diagnostics
from engine_helpers import TINY_ENGINE
from safetensors.torch import load_file, save_file

from rlanything.config.schema import ModelConfig, RewardConfig, RolloutConfig
from rlanything.domains.alfworld.domain import AlfworldDomain
from rlanything.domains.base import Env, Observation, ParsedAction, SandboxFailure
from rlanything.domains.parts import StepJudging
from rlanything.engines import start_engine
from rlanything.engines.base import EngineError, request_seed
from rlanything.engines.chat import Chat
from rlanything.engines.chat_model import ChatModel
from rlanything.rollout.episode import Player
from rlanything.rollout.judging import Judge, StepJudge
from rlanything.runs.store import read_groups, write_groups
from rlanything.types import Ending, Group, Score, Status, Trajectory, user


@pytest.fixture
def domain(world):
    return AlfworldDomain(config_of("alfworld", world.games, max_step=4, show_actions="here"))


def play(domain, model, config, num=2, task=None, judge=None):
    async def run():
        judged = judge or Judge()
        player = Player(domain, model, config, "seed", judged)
        group = await player.group(task or domain.tasks("train")[0], num, lambda: None)
        await judged.finish(group)
        return group

    return asyncio.run(run())


SHORT = RolloutConfig(max_interaction_step=3, max_response_tokens=24, num_retry=1, env_timeout_s=0.2)


def test_append_only_prompts_extend_what_was_sampled_token_for_token(domain, model):
    for trajectory in play(domain, model, SHORT).trajectories:
        assert trajectory.status is Status.TRUNCATED and len(trajectory.turns) == 3
        for before, after in zip(trajectory.turns, trajectory.turns[1:], strict=False):
            seen = before.prompt.ids + before.response_ids
            assert after.prompt.ids[: len(seen)] == seen
            assert len(after.prompt.ids) > len(seen)


def test_an_append_only_conversation_reads_as_the_chat_template_renders_it(domain, model):
    chat = model.chat
    said = (("user", "room"), ("assistant", "x"), ("user", "y"))
    first, answer, second = ({"role": role, "content": content} for role, content in said)
    ids = [*chat.prompt([first]).ids, *chat.response_ids("x"), *chat.follow_up([second]).ids]
    assert ids == chat.prompt([first, answer, second]).ids


def test_paper_history_renders_every_prompt_anew(domain, model):
    config = RolloutConfig(max_interaction_step=3, max_response_tokens=24, history="paper")
    turns = play(domain, model, config, num=1).trajectories[0].turns
    text = model.chat.tokenizer.decode(turns[2].prompt.ids)
    assert text.count("<|user|>") == 1 and text.count("\n> ") == 2


def test_the_same_seed_plays_the_same_episodes_and_rollouts_differ(domain, model):
    def ids(group):
        return [[t.response_ids for t in tr.turns] for tr in group.trajectories]

    one, two = ids(play(domain, model, SHORT)), ids(play(domain, model, SHORT))
    assert one == two and one[0] != one[1]
    assert request_seed("a", 1) != request_seed("a", 2)


def test_unparsable_output_is_an_invalid_action_and_never_the_first_one(domain, model):
    group = play(domain, model, RolloutConfig(max_interaction_step=3, max_response_tokens=2))
    turns = [t for tr in group.trajectories for t in tr.turns if t.action is None]
    assert turns, "two tokens are too few for a command"
    assert all(t.parse_error and t.invalid and t.observation == "Nothing happens." for t in turns)


def test_a_response_that_is_cut_off_truncates_the_episode(domain, model):
    group = play(domain, model, RolloutConfig(max_interaction_step=3, max_response_tokens=2))
    cut = [t for t in group.trajectories if any(turn.stop_reason == "length" for turn in t.turns)]
    assert cut and all(t.status is Status.TRUNCATED and len(t.turns) == 1 for t in cut)


def test_an_episode_that_is_too_long_is_truncated_at_its_limit(domain, model):
    config = SHORT.model_copy(update={"max_interaction_step": 10, "max_response_tokens": 16, "max_episode_tokens": 60})
    for trajectory in play(domain, model, config).valid:
        first, last = trajectory.turns[0], trajectory.turns[-1]
        assert len(last.prompt.ids) + len(last.response_ids) - len(first.prompt.ids) <= 60 and len(trajectory.turns) > 1
        assert trajectory.status is Status.TRUNCATED and trajectory.ending is Ending.LENGTH
    [whole] = play(domain, model, config.model_copy(update={"max_episode_tokens": 5}), num=1).valid
    assert [len(turn.response_ids) for turn in whole.turns] == [5]


def test_a_full_context_truncates_the_episode(domain, model):
    config = RolloutConfig(max_interaction_step=200, max_response_tokens=32)
    trajectory = play(domain, model, config, num=1).trajectories[0]
    assert trajectory.status is Status.TRUNCATED and 1 < len(trajectory.turns) < 200


def test_a_first_prompt_that_does_not_fit_is_a_failure_and_no_episode_without_turns(domain, model, monkeypatch):
    monkeypatch.setattr(domain, "opening", lambda *args: [user("mug " * 900)])
    trajectory = play(domain, model, SHORT, num=1).trajectories[0]
    assert trajectory.status is Status.CONTEXT_ERROR and "max_model_len=512" in trajectory.error


class BrokenEnv(Env):
    """An environment that raises, hangs, or loses its sandbox on its second step."""

    def __init__(self, fault: str, made: list) -> None:
        self.fault, self.steps, self.closed = fault, 0, False
        made.append(self)

    async def reset(self):
        return Observation("-= Welcome to TextWorld, ALFRED! =-\n\nroom\n\nYour task is to: x.")

    async def step(self, action):
        self.steps += 1
        if self.steps == 2 and self.fault == "raises":
            raise OSError("the simulator is gone")
        if self.steps == 2 and self.fault == "has no sandbox":
            raise SandboxFailure("the runner is gone")
        if self.steps == 2 and self.fault == "hangs":
            await asyncio.sleep(60)
        return Observation("Nothing happens.", invalid=True)

    async def close(self):
        self.closed = True


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ("raises", Status.ENV_ERROR),
        ("hangs", Status.ENV_TIMEOUT),
        ("has no sandbox", Status.SANDBOX_ERROR),
    ],
)
def test_a_broken_environment_is_retried_then_a_counted_failure(domain, model, monkeypatch, fault, status):
    made: list[BrokenEnv] = []
    monkeypatch.setattr(domain, "make_env", lambda task: BrokenEnv(fault, made))
    group = play(domain, model, SHORT, num=1)
    assert group.trajectories[0].status is status and group.trajectories[0].error
    assert diagnostics([group])["failures"] == diagnostics([group])[f"failures/{status}"] == 1
    assert diagnostics([group])["retries"] == 1
    assert len(made) == 2 and all(env.closed for env in made)
    assert group.valid == []


def test_what_is_no_fault_of_the_environment_ends_the_run(domain, model, monkeypatch):
    """Played anew it would fail again, and below rollout.max_failure_rate nobody would hear of it."""

    def parse_action(text, observation):
        raise KeyError("ours")

    monkeypatch.setattr(domain, "parse_action", parse_action)
    with pytest.raises(KeyError, match="ours"):
        play(domain, model, SHORT, num=1)


@pytest.mark.parametrize("fault", ["raises", "hangs"])
def test_an_environment_that_cannot_be_closed_is_told_of_and_its_episode_counts(
    domain, model, monkeypatch, caplog, fault
):
    class Unclosed(BrokenEnv):
        async def close(self):
            if fault == "raises":
                raise OSError("no such machine")
            await asyncio.sleep(60)

    monkeypatch.setattr(domain, "make_env", lambda task: Unclosed("", []))
    [trajectory] = play(domain, model, SHORT, num=1).valid
    assert trajectory.status is Status.TRUNCATED and trajectory.retries == 0
    assert f"an environment of task {trajectory.task_id} could not be closed" in caplog.text


def test_an_episode_that_is_cancelled_as_its_environment_answers_ends(domain, model, monkeypatch):
    class CancellingEnv(BrokenEnv):
        async def step(self, action):
            asyncio.get_running_loop().call_soon(episodes.cancel)
            return Observation("Nothing happens.", invalid=True)

    async def run():
        nonlocal episodes
        tasks = domain.tasks("train")[:1]
        player = Player(domain, model, RolloutConfig(max_interaction_step=20, max_response_tokens=8), "seed", Judge())
        episodes = asyncio.ensure_future(player.group(tasks[0], 1, lambda: None))
        await episodes

    episodes: asyncio.Future
    made: list[BrokenEnv] = []
    monkeypatch.setattr(domain, "make_env", lambda task: CancellingEnv("", made))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert made[0].closed


class TooLong(StepJudging):
    """Prompts that fit no context."""

    def messages(self, task, trajectory, i):
        return [user("mug " * 900)]


def judge_of(domain, model, num, judging=None, required=True):
    config = RewardConfig(num_evaluation=num, max_response_tokens=6)
    return StepJudge(model, judging or domain.judging, config, "seed", required)


def test_every_turn_is_judged_m_times_and_what_was_sampled_is_kept(domain, model):
    group = play(domain, model, SHORT, judge=judge_of(domain, model, 3))
    for trajectory in group.trajectories:
        for i in range(len(trajectory.turns)):
            found = [j for j in group.judgements if (trajectory.index, i) in j.scores]
            assert len(found) == 3
            for j in found:
                assert len(j.response_ids) == len(j.logprobs) > 0 and j.prompt.ids
                assert (j.scores[trajectory.index, i] is None) == bool(j.parse_error)


@pytest.mark.parametrize("required", [True, False])
def test_a_judge_prompt_that_does_not_fit_breaks_the_episode_only_if_judging_is_required(domain, model, required):
    judge = judge_of(domain, model, 2, TooLong("compact"), required)
    group = play(domain, model, SHORT, num=1, judge=judge)
    assert group.trajectories[0].status is (Status.JUDGE_ERROR if required else Status.TRUNCATED)
    assert not group.judgements


def test_an_episode_that_was_solved_before_its_judge_failed_is_broken_too(domain, model):
    judge = judge_of(domain, model, 2, TooLong("compact"))
    task, trajectory = domain.tasks("train")[0], Trajectory(task_id="q", index=0, first_observation="room")

    async def run():
        judge.on_turn(task, trajectory, 0)
        await asyncio.sleep(0)
        trajectory.status = Status.COMPLETED  # the episode went on meanwhile
        await judge.finish(Group(task=task, trajectories=[trajectory]))

    asyncio.run(run())
    assert trajectory.status is Status.JUDGE_ERROR


def test_judgements_of_an_attempt_that_the_environment_broke_are_no_judgements_of_the_next(domain, model, monkeypatch):
    made: list[BrokenEnv] = []

    def make_env(task):
        made.append(None)
        return BrokenEnv("raises" if len(made) == 1 else "", [])

    monkeypatch.setattr(domain, "make_env", make_env)
    group = play(domain, model, SHORT, num=1, judge=judge_of(domain, model, 2))
    [trajectory] = group.valid
    assert trajectory.retries == 1 and len(group.judgements) == 2 * len(trajectory.turns)


class Scored(BrokenEnv):
    """An environment that knows at the end how much was done, however the episode ended."""

    def __init__(self, made):
        super().__init__("", made)
        self.asked = 0

    async def score(self, last):
        self.asked += 1
        return Score(success=False, reward=0.5 * self.steps, answer="42")


def test_an_episode_that_ran_out_of_turns_is_scored_once_and_says_why_it_ended(domain, model, monkeypatch):
    made: list[Scored] = []
    monkeypatch.setattr(domain, "make_env", lambda task: Scored(made))
    [trajectory] = play(domain, model, SHORT, num=1).valid
    assert trajectory.ending is Ending.TURNS and trajectory.status is Status.TRUNCATED and made[0].asked == 1
    assert trajectory.score == Score(success=False, reward=1.5, answer="42") and trajectory.outcome == -1


def test_an_environment_that_cannot_score_broke_the_episode(domain, model, monkeypatch):
    class Unscored(BrokenEnv):
        async def score(self, last):
            raise OSError("the checker is gone")

    monkeypatch.setattr(domain, "make_env", lambda task: Unscored("", []))
    [trajectory] = play(domain, model, SHORT, num=1).trajectories
    assert trajectory.status is Status.ENV_ERROR and trajectory.ending is Ending.BROKEN and trajectory.score is None


def test_an_episode_tells_its_phases_and_kinds_of_actions_and_keeps_them_in_files(domain, model, monkeypatch, tmp_path):
    class Timed(BrokenEnv):
        async def step(self, action):
            return Observation("seen", seconds={"settle": 0.5})

    monkeypatch.setattr(domain, "make_env", lambda task: Timed("", []))
    monkeypatch.setattr(domain, "parse_action", lambda text, seen: ParsedAction("look", kind="looks"))
    monkeypatch.setattr(domain, "figures", lambda: {"rooms": 3.0})
    group = play(domain, model, SHORT, num=1)
    [trajectory] = group.valid
    assert trajectory.phases.keys() == {"reset", "model", "settle", "evaluate"} and group.figures == {"rooms": 3.0}
    assert trajectory.phases["settle"] == 0.5 * len(trajectory.turns) and trajectory.turns[0].kind == "looks"
    write_groups(tmp_path / "file.parquet", [group], domain.describe, domain.kind)
    [kept] = read_groups(tmp_path / "file.parquet", {})[0].trajectories
    assert kept.phases == pytest.approx(trajectory.phases) and kept.turns[0].kind == "looks"


def test_turns_that_began_in_one_state_can_be_told(domain, model):
    group = play(domain, model, SHORT)
    states = [[turn.state for turn in t.turns] for t in group.trajectories]
    assert states[0][0] == states[1][0] and all(state for episode in states for state in episode)


def test_the_critic_holds_the_remarks_of_solved_and_failed_episodes(domain, model):
    g = builders.group(builders.trajectory(1, [(1, 1)]), builders.trajectory(-1, [(-1, None)]))
    summary = domain.rewriting.critic(g)
    assert "1 solved episodes:" in summary and "good x2: look: says {(0, 0): 1}" in summary
    assert "1 failed episodes:" in summary and "bad x1: look: says {(1, 0): -1}" in summary


class OneSeat(AlfworldDomain):
    """An environment that plays one episode at a time, and says how many it saw at once."""

    capacity = 1
    now = most = 0

    def make_env(self, task):
        env, domain = super().make_env(task), self
        reset, close = env.reset, env.close

        async def counted_reset():
            domain.now += 1
            domain.most = max(domain.most, domain.now)
            return await reset()

        async def counted_close():
            domain.now -= 1
            await close()

        env.reset, env.close = counted_reset, counted_close
        return env


def test_batches_that_are_played_beside_one_another_share_the_environment_s_capacity(world, model):
    domain = OneSeat(config_of("alfworld", world.games, max_step=4, show_actions="here"))

    async def batches():
        players = [Player(domain, model, SHORT, f"seed{i}", Judge()) for i in range(3)]
        tasks = domain.tasks("train")
        return await asyncio.gather(*(p.group(tasks[i], 2, lambda: None) for i, p in enumerate(players)))

    groups = asyncio.run(batches())
    assert [len(g.trajectories) for g in groups] == [2, 2, 2] and domain.most == 1 and domain.now == 0
    assert asyncio.run(batches())[0].valid, "another event loop has a limit of its own"


def test_a_cut_response_ends_an_episode_only_if_the_conversation_would_go_on_from_it(domain, model):
    cut = SHORT.model_copy(update={"max_response_tokens": 1})
    [ended] = play(domain, model, cut, num=1).trajectories
    assert ended.ending is Ending.LENGTH and len(ended.turns) == 1
    [went_on] = play(domain, model, cut.model_copy(update={"history": "paper"}), num=1).trajectories
    assert went_on.ending is Ending.TURNS and len(went_on.turns) == 3


def test_a_cut_response_that_solves_its_task_is_solved_and_truncated(domain, model, monkeypatch):
    class Won(Scored):
        async def step(self, action):
            return Observation("", done=True, success=True)

    monkeypatch.setattr(domain, "make_env", lambda task: Won([]))
    cut = SHORT.model_copy(update={"max_response_tokens": 1})
    [ended] = play(domain, model, cut, num=1).trajectories
    assert (ended.status, ended.ending, len(ended.turns)) == (Status.TRUNCATED, Ending.LENGTH, 1)
    assert ended.turns[0].stop_reason == "length"


def test_a_model_without_finite_logprobs_ends_the_run_with_one_message(domain, world, tmp_path):
    folder = shutil.copytree(world.model, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = ModelConfig(path=str(folder))
    broken = ChatModel(start_engine(config, TINY_ENGINE, seed=0, log_path=tmp_path / "engine.log"), Chat(config))
    with pytest.raises(EngineError, match="no finite logprobs; its weights hold NaN"):
        play(domain, broken, SHORT)
    with pytest.raises(EngineError, match="no finite logprobs"):
        asyncio.run(broken.ask([user("x")], temperature=1.0, max_tokens=4, seed=0))
    broken.engine.close()
