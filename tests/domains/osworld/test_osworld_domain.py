"""OSWorld's drawn desktops as a domain: episodes, scores, labels, prompts, variants, demonstrations."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from builders import config_of
from builders import turn as make_turn

from rlanything.domains.base import Observation, Step
from rlanything.domains.osworld.actions import Action, read_response
from rlanything.domains.osworld.canvas.demonstrations import response
from rlanything.domains.osworld.canvas.goals import instruction
from rlanything.domains.osworld.canvas.solver import solve
from rlanything.domains.osworld.rewriting import choice
from rlanything.domains.parts import RejectedTask
from rlanything.domains.registry import make_domain
from rlanything.errors import TaskError
from rlanything.play import play
from rlanything.types import Direction, Score, Task, Trajectory

FAILURE = Action(kind="terminate", status="failure").to_json()
SUCCESS = Action(kind="terminate", status="success").to_json()
SPLITS = ("train", "eval_in_distribution", "eval_out_of_distribution")


@pytest.fixture
def domain(tmp_path):
    config = config_of("osworld", size=40, eval_size=40, infeasible=0.3)
    config.experiment.output_dir, config.dataset.prompt = str(tmp_path), "compact"
    return make_domain(config)


def feasible(domain, wanted: bool = True) -> Task:
    """A task that can be done, or one that cannot."""
    family = next(
        name
        for name in (task.payload["family"] for task in domain.tasks("train"))
        if any(v.feasible is wanted for v in domain.world.library.verifiers(name).values())
    )
    name, verifier = next((n, v) for n, v in domain.world.library.verifiers(family).items() if v.feasible is wanted)
    return Task(id=family, payload={"family": family, "verifier": name, "instruction": instruction(verifier.goals)})


def played(domain, task: Task, actions=None, most: int = 30) -> tuple[list[Observation], Score]:
    """(observations, score) of an episode with these actions, or with the scripted solution."""

    async def run():
        env = domain.make_env(task)
        seen = [await env.reset()]
        given = iter(actions) if actions is not None else None
        while not seen[-1].done and len(seen) <= most:
            scripted = solve(env.goals, env.feasible, env.desk).action.to_json() if given is None else next(given, "")
            if scripted == "":
                break
            seen.append(await env.step(scripted))
        return seen, await env.score(seen[-1])

    return asyncio.run(run())


@pytest.mark.parametrize("split", SPLITS)
def test_the_scripted_solution_solves_every_task_with_progress_in_every_step(domain, split):
    for task in domain.tasks(split):
        seen, score = played(domain, task)
        assert score == Score(success=True, reward=1.0) and seen[-1].success
        assert [o.label for o in seen[1:]] == [1] * (len(seen) - 1)
        assert all(o.results == ("ok",) for o in seen[1:-1])
        assert all(Path(path).is_file() for o in seen for path in o.images)


def test_a_step_limit_or_a_claim_of_failure_never_solves_a_task(domain):
    impossible, possible = feasible(domain, False), feasible(domain)
    nothing = Action(kind="wait", time=1.0).to_json()
    assert not played(domain, impossible, [nothing] * 5)[1].success, "the step limit says nothing"
    assert not played(domain, impossible, [SUCCESS])[1].success
    assert not played(domain, impossible, [None] * 3)[1].success, "an action that cannot be read is not FAIL"
    assert played(domain, impossible, [FAILURE])[1].success
    assert not played(domain, possible, [FAILURE])[1].success and not played(domain, possible, [SUCCESS])[1].success


def test_the_state_decides_where_the_episode_is_cut(domain):
    task = feasible(domain)
    whole, _ = played(domain, task)
    seen, score = played(domain, task, most=len(whole) - 2)
    assert not seen[-1].done and score.success, "everything was done but for saying so"


def test_a_response_without_an_action_changes_nothing_and_is_counted(domain):
    seen, _ = played(domain, feasible(domain), [None])
    assert seen[1].invalid and seen[1].images == seen[0].images and seen[1].label == -1 and not seen[1].done
    parsed = domain.parse_action("click Wi-Fi", seen[0])
    assert parsed.action is None and parsed.error == "no tool call"


def test_partial_work_is_a_reward_and_no_success(domain):
    name, verifier = next(
        (task.payload["family"], (key, v))
        for task in domain.tasks("train")
        for key, v in domain.world.library.verifiers(task.payload["family"]).items()
        if len(v.goals) == 2 and v.feasible
    )
    key, found = verifier
    task = Task(id=name, payload={"family": name, "verifier": key, "instruction": ""})
    env = domain.make_env(task)

    async def first_goal_only():
        await env.reset()
        while not found.goals[0].holds(env.desk):
            await env.step(solve(found.goals, True, env.desk).action.to_json())
        return await env.score(Observation(""))

    assert asyncio.run(first_goal_only()) == Score(success=False, reward=0.5)


def test_history_of_the_paper_shows_the_last_screens_and_tells_of_the_others(domain):
    task, screens = domain.tasks("train")[0], [f"{i}.png" for i in range(6)]
    first = Observation("", images=(screens[0],))
    steps = [
        Step(response=f"Action: step {i}\n<tool_call>", action="", observation=Observation("", images=(screens[i],)))
        for i in range(1, 6)
    ]
    messages = domain.retold(task, first, steps)
    shown = [p["image"] for m in messages if isinstance(m["content"], list) for p in m["content"] if "image" in p]
    assert shown == screens[-3:] and [m["role"] for m in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert messages[0]["content"][-1]["text"].endswith("\nStep 1: step 1\nStep 2: step 2\nStep 3: step 3")
    assert domain.retold(task, first, [])[0] == domain.opening(task, first)[0]


def test_the_judge_sees_the_screens_before_and_after_and_shares_what_came_before(domain):
    task = domain.tasks("train")[0]
    made = [replace(make_turn(), text=f"step {i}", images=(f"{i}.png",)) for i in (1, 2)]
    trajectory = Trajectory(task_id=task.id, index=0, first_images=("0.png",), turns=made)
    [message] = domain.judging.messages(task, trajectory, 1)
    assert [p["image"] for p in message["content"] if "image" in p] == ["1.png", "2.png"]
    assert "Step 1: step 1" in message["content"][0]["text"] and "step 2" in message["content"][2]["text"]
    assert domain.tools() == []
    domain.config.dataset.prompt = "full"
    assert domain.tools()[0]["function"]["name"] == "computer_use"


def test_the_rewriter_chooses_a_verifier_and_proposals_are_refused_by_reason(domain):
    task = domain.tasks("train")[0]
    family, now = task.payload["family"], task.payload["verifier"]
    names = list(domain.world.offered(family))
    other = next(name for name in names if name != now)
    asked = domain.rewriting.messages(task, Direction.HARDER, 1.0, "")[-1]["content"]
    assert all(f"{name}: " in asked for name in names) and "Make it harder." in asked
    variant = domain.rewriting.parse(f'Better: {{"{other}": "do  it"}}', task, Direction.HARDER, "q~1")
    assert variant.payload == {**task.payload, "verifier": other, "instruction": "do it"}
    assert variant.root_id == variant.parent_id == task.id and domain.identity(variant) != domain.identity(task)
    kept = domain.rewriting.parse(json.dumps({other: None}), task, Direction.HARDER, "q~1")
    assert kept.payload["instruction"] == domain.world.offered(task.payload["family"])[other]
    same = json.dumps({now: task.payload["instruction"].upper()})
    for text, reason in (
        ("none", "no_proposal"),
        ('{"a": {"b": 1}', "schema"),
        ('{"verifier1": "x", "verifier2": "y"}', "schema"),
        ('{"verifier1": ""}', "schema"),
        ('{"verifier1": 5}', "schema"),
        ('{"verifier1": null, "verifier2": null}', "schema"),
        ('{"verifier99": null}', "unknown_verifier"),
        (json.dumps({now: None}), "unchanged"),
        ('{"verifier1": "turn \\ud83d on"}', "schema"),
        ('{"verifier99": "x"}', "unknown_verifier"),
        (json.dumps({other: "x" * 301}), "too_long"),
        (same, "unchanged"),
    ):
        with pytest.raises(RejectedTask) as refused:
            domain.rewriting.parse(text, task, Direction.HARDER, "q~1")
        assert refused.value.reason == reason, text


def test_no_variant_asks_for_what_cannot_be_done(domain):
    """Giving up would pay, and the share of such tasks has a limit."""
    task = feasible(domain, False)
    payload = task.payload
    offered = domain.world.offered(payload["family"])
    assert payload["verifier"] not in offered and len(offered) == len(domain.world.verifiers(payload["family"])) - 1
    checks, _, _ = domain.rewriting.messages(task, Direction.EASIER, 0.0, "")[-1]["content"].partition("\nTask: ")
    assert f"{payload['verifier']}: " not in checks
    with pytest.raises(RejectedTask) as refused:
        domain.rewriting.parse(json.dumps({payload["verifier"]: "x"}), task, Direction.EASIER, "q~1")
    assert refused.value.reason == "infeasible"
    assert domain.rewriting.parse(json.dumps({next(iter(offered)): None}), task, Direction.EASIER, "q~1")
    for conversation in islice(domain.demonstrations("rewriter", "train", 0), 100):
        asked, [chosen] = conversation.messages[-2]["content"], json.loads(conversation.messages[-1]["content"])
        assert f"{chosen}: " in asked


def test_demonstrations_act_judge_and_choose_as_the_domain_reads_them(domain):
    shown, whole = list(islice(domain.demonstrations("policy", "train", 0), 60)), 0
    for conversation in shown:
        answers = [m["content"] for m in conversation.messages if m["role"] == "assistant"]
        assert all(read_response(answer) for answer in answers)
        if len(answers) > 1:  # a whole episode, not the first move on some screen
            whole += 1
            assert read_response(answers[-1]).kind == "terminate" and conversation.trained[-1]
        assert [m["role"] for m, t in zip(conversation.messages, conversation.trained, strict=True) if t]
    assert 2 < whole < 30 and len({conversation.key for conversation in shown}) > whole
    judged = list(islice(domain.demonstrations("reward", "train", 0), 200))
    scores = [domain.judging.parse(c.messages[-1]["content"])[0] for c in judged]
    assert 40 < scores.count(1) < 160 and scores.count(1) + scores.count(-1) == 200
    chosen = list(islice(domain.demonstrations("rewriter", "train", 0), 20))
    assert all(json.loads(conversation.messages[-1]["content"]) for conversation in chosen)
    asked = [conversation.messages[-2]["content"] for conversation in chosen]
    assert any("Critic: none" in words for words in asked)
    told = next(words for words in asked if "failed episodes:\n- good x" in words)  # as in the loop
    assert ": \\boxed{-1}" in told


def test_the_rewriter_is_shown_the_next_longer_way_or_the_shortest():
    checks = {name: f"do {name}" for name in ("a", "b", "c", "d")}
    ways = {"a": 2, "b": 4, "c": 4, "d": 9}
    shown = [choice(checks, ways, random.Random(seed), "compact") for seed in range(60)]
    words = [(asked[-1]["content"], next(iter(json.loads(answer)))) for asked, answer in shown]
    found = {(asked.split("Task: ")[1][0], asked.split("Make it ")[1], answer) for asked, answer in words}
    harder = {("a", "harder.", "b"), ("b", "harder.", "d"), ("c", "harder.", "d")}
    assert found == harder | {(now, "easier.", "a") for now in ("b", "c", "d")} | {("a", "easier.", "b")}
    assert choice({"a": "do a"}, {"a": 3}, random.Random(0), "compact") is None


def test_demonstrations_repeat_with_their_seed(domain):
    first, again, other = (
        [c.messages for c in islice(domain.demonstrations("policy", "train", seed), 3)] for seed in (0, 0, 1)
    )
    assert first == again != other


def test_an_unknown_split_is_named(domain):
    with pytest.raises(TaskError, match="split test: there is none, expected one of train"):
        domain.tasks("test")


def test_a_person_can_play_it(tmp_path, monkeypatch):
    config = config_of("osworld", size=3)
    config.experiment.output_dir = str(tmp_path)
    typed, said = iter(["hello", "left_click 500", "left_click 500 300", "terminate failure"]), []
    play(config, ask=lambda prompt: next(typed), say=said.append)
    text = "\n".join(said)
    assert "action: found 'hello'" in text and "coordinate: found [500.0]" in text
    assert text.count(".png") == 3 and "after 2 turns" in text


def test_a_move_is_written_as_it_is_read(domain):
    family = domain.world.library.family("train/0")
    move = solve(family.verifiers[0].goals, family.verifiers[0].feasible, family.desk)
    assert read_response(response(move)) == move.action
