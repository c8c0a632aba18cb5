"""Episodes as coroutines, with the real small engine, and environments that misbehave."""

import asyncio

import pytest

from rlanything.algorithm.diagnostics import diagnostics
from rlanything.config.schema import DatasetConfig, EngineConfig, ModelConfig, RewardConfig, RolloutConfig
from rlanything.domains.alfworld.domain import AlfworldDomain
from rlanything.domains.base import Observation
from rlanything.engines import make_engine
from rlanything.engines.chat import Chat, ChatModel
from rlanything.engines.template import ChatError
from rlanything.rollout.episode import ignore_turn, request_seed, run_group
from rlanything.rollout.judging import Judge, critic_summary
from rlanything.types import Status, Trajectory

ENGINE = EngineConfig(kind="transformers", dtype="float32", max_model_len=512, max_num_seqs=32, kv_cache_gb=0.05)


@pytest.fixture(scope="module")
def model(world, tmp_path_factory):
    config = ModelConfig(str(world.model))
    log = tmp_path_factory.mktemp("logs") / "engine.log"
    return ChatModel(make_engine(config, ENGINE, seed=0, log_path=log), Chat(config))


@pytest.fixture
def domain(world):
    return AlfworldDomain(DatasetConfig(path=str(world.games), prompt="compact", show_actions="here"), "test", 4)


def play(domain, model, config, num=2, task=None, judge=None):
    async def run():
        limit = asyncio.Semaphore(8)
        on_turn = judge.on_turn if judge else ignore_turn
        chosen = task or domain.tasks("train")[0]
        group = await run_group(chosen, domain, model, config, "seed", num, limit, on_turn, lambda: None)
        if judge:
            await judge.finish()
        return group

    return asyncio.run(run())


SHORT = RolloutConfig(max_interaction_step=3, max_response_tokens=24, num_retry=1, env_timeout_s=0.2)


def test_append_only_prompts_extend_what_was_sampled_token_for_token(domain, model):
    for trajectory in play(domain, model, SHORT).trajectories:
        assert trajectory.status is Status.TRUNCATED and len(trajectory.turns) == 3
        for before, after in zip(trajectory.turns, trajectory.turns[1:], strict=False):
            seen = before.prompt_ids + before.response_ids
            assert after.prompt_ids[: len(seen)] == seen
            assert len(after.prompt_ids) > len(seen)


def test_an_append_only_conversation_reads_as_the_chat_template_renders_it(domain, model):
    chat = model.chat
    said = (("user", "room"), ("assistant", "x"), ("user", "y"))
    first, answer, second = ({"role": role, "content": content} for role, content in said)
    ids = [*chat.prompt([first]).ids, *chat.encode("x"), chat.end_of_turn, *chat.follow_up([second]).ids]
    assert ids == chat.prompt([first, answer, second]).ids


def test_paper_history_renders_every_prompt_anew(domain, model):
    config = RolloutConfig(max_interaction_step=3, max_response_tokens=24, history="paper")
    turns = play(domain, model, config, num=1).trajectories[0].turns
    text = model.chat.tokenizer.decode(turns[2].prompt_ids)
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


def test_a_full_context_truncates_the_episode(domain, model):
    config = RolloutConfig(max_interaction_step=200, max_response_tokens=32)
    trajectory = play(domain, model, config, num=1).trajectories[0]
    assert trajectory.status is Status.TRUNCATED and 1 < len(trajectory.turns) < 200


def test_a_first_prompt_that_does_not_fit_is_a_failure_and_no_episode_without_turns(domain, model, monkeypatch):
    long = {"role": "user", "content": "mug " * 900}
    monkeypatch.setattr(domain, "user_message", lambda *args: long)
    trajectory = play(domain, model, SHORT, num=1).trajectories[0]
    assert trajectory.status is Status.CONTEXT_ERROR and "max_model_len=512" in trajectory.error


class BrokenEnv:
    """An environment that raises, or hangs, on its second step."""

    def __init__(self, fault: str, made: list) -> None:
        self.fault, self.steps, self.closed = fault, 0, False
        made.append(self)

    async def reset(self):
        return Observation("-= Welcome to TextWorld, ALFRED! =-\n\nroom\n\nYour task is to: x.")

    async def step(self, action):
        self.steps += 1
        if self.steps == 2 and self.fault == "raises":
            raise OSError("the simulator is gone")
        if self.steps == 2 and self.fault == "hangs":
            await asyncio.sleep(60)
        return Observation("Nothing happens.", invalid=True)

    async def close(self):
        self.closed = True


@pytest.mark.parametrize(("fault", "status"), [("raises", Status.ENV_ERROR), ("hangs", Status.ENV_TIMEOUT)])
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
        config = RolloutConfig(max_interaction_step=20, max_response_tokens=8)
        limit = asyncio.Semaphore(8)
        playing = run_group(tasks[0], domain, model, config, "seed", 1, limit, ignore_turn, lambda: None)
        episodes = asyncio.ensure_future(playing)
        await episodes

    episodes: asyncio.Future
    made: list[BrokenEnv] = []
    monkeypatch.setattr(domain, "make_env", lambda task: CancellingEnv("", made))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert made[0].closed


def test_every_turn_is_judged_m_times_and_what_was_sampled_is_kept(domain, model):
    judge = Judge(model, domain, RewardConfig(num_evaluation=3, max_response_tokens=6), "seed")
    group = play(domain, model, SHORT, judge=judge)
    for trajectory in group.trajectories:
        for turn in trajectory.turns:
            assert len(turn.evaluations) == 3
            for e in turn.evaluations:
                assert len(e.response_ids) == len(e.logprobs) > 0 and e.prompt_ids
                assert (e.score is None) == bool(e.parse_error)


@pytest.mark.parametrize("required", [True, False])
def test_a_judge_prompt_that_does_not_fit_breaks_the_episode_only_where_judging_is_required(domain, model, required):
    judge = Judge(model, domain, RewardConfig(num_evaluation=2, max_response_tokens=6), "seed", required=required)
    judge.domain = type("Long", (), {"judge_messages": lambda self, *a: [{"role": "user", "content": "mug " * 900}]})()
    [trajectory] = play(domain, model, SHORT, num=1, judge=judge).trajectories
    assert trajectory.status is (Status.JUDGE_ERROR if required else Status.TRUNCATED)
    assert not any(turn.evaluations for turn in trajectory.turns)


def test_an_episode_that_was_solved_before_its_judge_failed_is_broken_too(domain, model):
    judge = Judge(model, domain, RewardConfig(num_evaluation=2, max_response_tokens=6), "seed")
    judge.domain = type("Long", (), {"judge_messages": lambda self, *a: [{"role": "user", "content": "mug " * 900}]})()
    trajectory = Trajectory("q", 0, "room")

    async def run():
        judge.on_turn(domain.tasks("train")[0], trajectory, 0)
        await asyncio.sleep(0)
        trajectory.status = Status.COMPLETED  # as an episode does that goes on meanwhile
        await judge.finish()

    asyncio.run(run())
    assert trajectory.status is Status.JUDGE_ERROR


def test_the_critic_summary_holds_the_remarks_of_solved_and_failed_episodes(domain, model):
    from builders import group, trajectory

    g = group(trajectory(1, [(1, 1)]), trajectory(-1, [(-1, None)]))
    summary = critic_summary(g)
    assert "1 solved episodes:" in summary and "good x2: look: score 1" in summary
    assert "1 failed episodes:" in summary and "bad x1: look: score -1" in summary


def test_a_model_without_tokenizer_or_chat_template_is_named(world, tmp_path):
    with pytest.raises(ChatError, match="no tokenizer could be loaded"):
        Chat(ModelConfig(str(tmp_path)))
    chat = Chat(ModelConfig(str(world.model)))
    chat.tokenizer.chat_template = None
    chat.tokenizer.save_pretrained(tmp_path / "bare")
    with pytest.raises(ChatError, match="no chat template"):
        Chat(ModelConfig(str(tmp_path / "bare")))
