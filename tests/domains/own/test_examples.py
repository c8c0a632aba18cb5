"""Domains outside the package: every region of examples/sums.py, and a domain whose tasks come from a library."""

import asyncio
import importlib.util
import json
from pathlib import Path

import pytest
from builders import config_of, group, judgement, trajectory

from rlanything.domains.base import Observation, Step, text_of
from rlanything.domains.parts import RejectedTask
from rlanything.domains.registry import make_domain
from rlanything.errors import ConfigError, TaskError
from rlanything.evaluation.play import evaluation_tasks
from rlanything.play import play
from rlanything.types import Direction, Status, Task


def sums(kind="Sums", **options):
    return make_domain(config_of(f"examples.sums:{kind}", **options))


def answered(domain, *actions, task=None):
    """(observations, score) of an episode with these actions."""

    async def run():
        env = domain.make_env(task or domain.tasks("train")[0])
        seen = [await env.reset()]
        for action in actions:
            seen.append(await env.step(action))
        return seen, await env.score(seen[-1])

    return asyncio.run(run())


def test_the_code_of_the_pages_is_the_examples_code():
    import build_docs

    for path in (Path(build_docs.ROOT) / "docs").glob("*.md"):
        page = path.read_text(encoding="utf-8")
        assert build_docs.built(page) == page, f"{path.name}: run python scripts/build_docs.py"


def test_thirty_lines_are_a_domain_with_judge_and_rewriter():
    domain = sums(top=20)
    task = domain.tasks("train")[0]
    (asked, said), score = answered(domain, task.payload["answer"])
    assert asked.text == task.payload["question"] == domain.describe(task) and said.done and score.success
    assert not answered(domain, "no")[1].success and not answered(domain, None)[1].success
    assert domain.judging.covers == "turn" and domain.rewriting and domain.demonstrating is None
    assert max(int(t.payload["answer"]) for t in domain.tasks("train")) > 18, "the option is used"


def test_the_default_judge_reads_the_transcript_and_the_question_comes_last():
    domain = sums()
    episode = trajectory(1, [(), ()])
    domain.config.dataset.prompt = "full"
    full, first = sums().judging, sums().judging.messages(domain.tasks("train")[0], episode, 0)[-1]["content"]
    second = full.messages(domain.tasks("train")[0], episode, 1)[-1]["content"]
    assert first == "room\n> text\nseen\nIs step 1, the last one, good or bad?"
    assert second.startswith(first.rpartition("\n")[0]), "consecutive turns share a cached prefix"
    assert full.parse("so \\boxed{-1}") == (-1, "") and full.parse("good")[0] is None


def test_the_default_rewriter_rewrites_texts_and_numbers_and_keeps_the_rest():
    domain = sums()
    rewriting = domain.rewriting
    task = Task(id="q", payload={"question": "1 + 2 = ?", "answer": "3", "limit": 2.5, "files": ["a"], "hard": True})
    asked = rewriting.messages(task, Direction.HARDER, 1.0, "all good")[-1]["content"]
    assert '"question": "1 + 2 = ?"' in asked and "files" not in asked and "Make it harder." in asked
    new = {"question": "10 + 20 = ?", "answer": "30", "limit": 3}
    variant = rewriting.parse(f"I think: {json.dumps(new)} is harder.", task, Direction.HARDER, "q~1")
    assert variant.payload == {**new, "files": ["a"], "hard": True} and variant.root_id == variant.parent_id == "q"
    same = {"question": "1 + 2 = ?", "answer": "3", "limit": 2.5}
    for text, reason in (
        ("none", "no_proposal"),
        ('{"question": "x"}', "no_proposal"),
        (json.dumps(new | {"answer": 30}), "schema"),
        (json.dumps(same), "unchanged"),
    ):
        with pytest.raises(RejectedTask) as rejected:
            rewriting.parse(text, task, Direction.HARDER, "q~1")
        assert rejected.value.reason == reason


def test_the_critic_of_the_default_rewriter_says_what_the_judge_said():
    g = group(trajectory(1, [()]), trajectory(-1, [()]))
    g.judgements = [judgement({(0, 0): 1}), judgement({(1, 0): -1})]
    assert "good x1: look" in sums().rewriting.critic(g) and "bad x1: look" in sums().rewriting.critic(g)


def test_own_words_scores_labels_and_states():
    domain = sums("JudgedSums")
    task = domain.tasks("train")[0]
    right = task.payload["answer"]
    seen, score = answered(domain, str(int(right) + 3), right)
    assert [o.label for o in seen[1:]] == [1, 1] and seen[1].text == "wrong, try again" and not seen[1].done
    assert score.success and score.reward == 0.5 and answered(domain, right)[1].reward == 1.0
    assert answered(domain, None, None)[0][-1].invalid and seen[1].state.endswith("missed by 3")
    assert domain.parse_action(" 12\n", seen[0]).action == "12" and domain.parse_action("twelve", seen[0]).error
    assert domain.opening(task, seen[0])[0]["role"] == "system"
    for payload, reason in (({"question": "2 + 2 = ?", "answer": "5"}, "wrong_answer"), ({"question": "hm"}, "no_sum")):
        with pytest.raises(RejectedTask) as rejected:
            domain.rewriting.parse(json.dumps({"answer": "4", **payload}), task, Direction.EASIER, "x")
        assert rejected.value.reason == reason


def test_demonstrations_of_policy_and_judge_are_true():
    domain = sums("DemonstratedSums")
    answers = {t.payload["question"]: t.payload["answer"] for t in domain.tasks("train")}
    for _, conversation in zip(range(20), domain.demonstrations("policy", "train", 0), strict=False):
        asked, said = conversation.messages
        assert answers[asked["content"]] == said["content"] and conversation.trained == [False, True]
    for _, conversation in zip(range(20), domain.demonstrations("reward", "train", 0), strict=False):
        asked, said = (m["content"] for m in conversation.messages)
        question, given, _ = (line.removeprefix("> ") for line in asked.split("\n")[:3])
        assert (given == answers[question]) == ("{1}" in said)
    with pytest.raises(TaskError, match="no demonstrations for the rewriter"):
        domain.demonstrations("rewriter", "train", 0)
    with pytest.raises(TaskError, match="Sums has no demonstrations; give conversations of your own"):
        sums().demonstrations("policy", "train", 0)


def test_a_tool_call_is_answered_by_a_tool_message():
    domain = sums("ToolSums")
    call = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    parsed = domain.parse_action(call, Observation(""))
    seen, _ = answered(domain, parsed.action)
    assert seen[1].text == "5" and not seen[1].done and domain.tools()[0]["function"]["name"] == "add"
    assert domain.answer(seen[1]) == [{"role": "tool", "content": "5", "name": "add"}]
    assert domain.parse_action("<tool_call>{</tool_call>", Observation("")).error
    assert domain.parse_action(" 7 ", Observation("")).action == "7"


def test_an_observation_with_an_image_becomes_parts_of_the_message(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    domain = make_domain(config_of("examples.sums:DrawnSums"))
    (first, *_), _ = answered(domain, "1")
    [message] = domain.opening(domain.tasks("train")[0], first)
    assert [part["type"] for part in message["content"]] == ["image", "text"]
    assert Path(message["content"][0]["image"]).is_file() and text_of(message) == "What is the sum in the picture?"


def test_the_default_retelling_holds_all_past_turns():
    domain = sums()
    steps = [Step(response="hm 7", action="7", observation=Observation("wrong"))]
    [message] = domain.retold(domain.tasks("train")[0], Observation("1 + 2 = ?"), steps)
    assert message["content"] == "1 + 2 = ?\n> 7\nwrong"


def test_any_domain_is_played_by_hand():
    said = []
    task = sums().tasks("train")[0]
    score = play(config_of("examples.sums:Sums"), ask=lambda prompt: task.payload["answer"], say=said.append)
    assert score.success and said[-1].endswith("Solved after 1 turn")


class NoTasks:
    pass


@pytest.mark.parametrize(
    ("domain", "options", "message"),
    [
        ("alfwrld", {}, "dataset.domain: found 'alfwrld', .*did you mean alfworld"),
        ("examples.sum:Sums", {}, "importing examples.sum fails"),
        ("examples.sums:Sum", {}, "defines no Sum; did you mean examples.sums:Sums?"),
        ("rlanything.types:Task", {}, "no subclass of rlanything.domains.base.Domain"),
        ("rlanything.domains.base:Domain", {}, "lacks make_env, tasks"),
        ("examples.sums:Sums", {"tops": 3}, r"dataset.options.tops: .*(did you mean|nearest).* top"),
        ("examples.sums:Sums", {"top": "many"}, "dataset.options.top: found 'many'"),
        ("examples.sums:ToolSums", {"backend": "x"}, "dataset.options.backend: "),
    ],
)
def test_a_domain_that_cannot_be_used_is_named_with_what_to_do(domain, options, message):
    with pytest.raises(ConfigError, match=message):
        make_domain(config_of(domain, **options))


@pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed")
def test_a_librarys_generators_are_a_domain_and_levels_are_the_direction():
    domain = make_domain(config_of("examples.reasoning_gym_domain:ReasoningGym", generator="chain_sum", size=4))
    task = domain.tasks("eval")[2]
    env = domain.make_env(task)
    (asked, said), score = answered(domain, env.dataset[0]["answer"], task=task)
    assert asked.text == env.dataset[0]["question"] and score.success and score.reward == 1.0
    assert not answered(domain, "no number", task=task)[1].success
    harder = domain.rewriting.parse("\\boxed{7}", task, Direction.HARDER, "x~1")
    assert harder.payload == {"generator": "chain_sum", "level": 1, "seed": 7} and domain.kind(harder) == "level 1"
    assert domain.identity(harder) != domain.identity(task)
    with pytest.raises(RejectedTask, match="no_level"):
        domain.rewriting.parse("\\boxed{7}", task, Direction.EASIER, "x~1")
    answered(domain, "1", task=harder)


def test_broken_episodes_of_a_group_are_never_read_by_the_shown_rule():
    from rlanything.algorithm.advantages import assign_advantages
    from rlanything.config.schema import AlgorithmConfig

    g = group(trajectory(1, [(1,)]), trajectory(-1, [(-1,)]), trajectory(1, [(1,)], status=Status.ENV_ERROR))
    assign_advantages([g], AlgorithmConfig(advantage="examples.rules:my_rloo"))
    assert g.trajectories[0].turns[0].advantage > 0 > g.trajectories[1].turns[0].advantage
    assert g.trajectories[2].turns[0].advantage is None


@pytest.mark.parametrize(
    ("ids", "said"),
    [([], "its split 'train' holds no task"), (["a", "b", "a"], "two tasks of its split .* the id 'a'")],
)
def test_a_split_without_tasks_or_with_one_id_twice_is_named_before_models_are_loaded(monkeypatch, ids, said):
    domain = sums()
    monkeypatch.setattr(domain, "tasks", lambda split: [Task(id=id, payload={}) for id in ids])
    for read in (lambda: domain.prepare(["train"]), lambda: evaluation_tasks(domain, "train", 0)):
        with pytest.raises(TaskError, match=said):
            read()


def test_the_default_rewriter_accepts_no_half_of_a_character():
    domain = sums()
    task = domain.tasks("train")[0]
    proposal = json.dumps({key: "a \ud83d" if isinstance(v, str) else v for key, v in task.payload.items()})
    with pytest.raises(RejectedTask, match="half a character"):
        domain.rewriting.parse(proposal, task, Direction.EASIER, "new")
