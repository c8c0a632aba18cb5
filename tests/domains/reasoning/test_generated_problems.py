"""Generated arithmetic: proven by execution, learnable from demonstrations, with exact labels."""

import asyncio
import json
import random
import re
from contextlib import closing
from dataclasses import replace
from itertools import islice

import pytest
from builders import config_of
from reasoning_problems import GENERATED_REASONING
from reasoning_problems.generator import EASY, FAMILIES, FIVE, FOUR, ONE, THREE, TWO, draw, generate, shown

from rlanything.domains.reasoning.answers import boxed
from rlanything.domains.reasoning.calls import call_text, read_calls
from rlanything.domains.registry import make_domain
from rlanything.types import Direction, Task


@pytest.fixture(scope="module")
def rows():
    return generate(60, seed=3)


@pytest.fixture
def domain(rows, tmp_path):
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with closing(make_domain(config_of(GENERATED_REASONING, tmp_path, grading="text", call_s=2.0))) as made:
        yield made


def play(domain, task, *responses):
    async def run():
        env, seen = domain.make_env(task), []
        await env.reset()
        for response in responses:
            seen.append(await env.step(domain.parse_action(response, None).action))
        return seen

    return asyncio.run(run())


def test_the_same_seed_makes_the_same_problems_and_held_out_ones_are_others(rows):
    assert generate(60, seed=3) == rows and len({row["question"] for row in rows}) == 60
    assert {row["kind"] for row in rows} == {EASY, ONE, TWO}
    others = generate(60, seed=3, without={row["question"] for row in rows})
    assert not {row["question"] for row in rows} & {row["question"] for row in others}


def test_chains_depend_on_what_the_last_call_showed_and_a_loop_gives_the_same():
    rows = generate(30, seed=5, shares={THREE: 1, FOUR: 1, FIVE: 1})
    assert {len(row["cells"]) for row in rows} == {3, 4, 5} and len({row["question"] for row in rows}) == 30
    for row in rows:
        assert shown(row["cells"]) == row["outputs"] and row["answer"] == row["outputs"][-1]
        for before, cell in zip(row["outputs"], row["cells"][1:], strict=False):
            assert cell == ("n=3*n+1\nprint(n)" if int(before) % 2 else "n=n//2\nprint(n)")
    for kind in (TWO, THREE, FOUR, FIVE):
        family, numbers = draw(random.Random(kind), kind)
        cells = [family.cells[0].format(**numbers)]
        for _ in range(family.num_branch):
            cells.append(family.otherwise if int(shown(cells)[-1]) % 2 else family.cells[1])
        assert shown([family.program.format(**numbers)]) == shown(cells)[-1:]


def test_judgements_say_what_is_due_and_steps_that_take_the_other_branch_are_wrong(tmp_path):
    rows = generate(40, seed=5, shares={TWO: 1, FIVE: 1})
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with closing(make_domain(config_of(GENERATED_REASONING, tmp_path, grading="text"))) as domain:
        judged = list(islice(domain.demonstrations("reward", "train", 0), 400))
    half, other = call_text("n=n//2\nprint(n)"), call_text("n = 3*n+1\nprint(n)")
    branches = [c for c in judged if c.messages[-1]["content"] == half]
    wrong = [c for c in branches if "3*n+1" in c.judged.text]
    assert wrong and all(c.judged.label == -1 for c in wrong)
    assert {domain.judging.parse(half, c.judged) for c in wrong} == {(-1, "")}
    assert {domain.judging.parse(other, c.judged) for c in wrong} == {(1, "")}
    assert domain.judging.parse("3", wrong[0].judged) == (None, "no call that can be read, and no \\boxed{...}")
    assert re.search(r"due in place of step [2-5]\?$", wrong[0].messages[-2]["content"])


def test_every_script_solves_its_problem_in_the_sandbox_and_each_step_is_progress(domain):
    async def solve(task):
        env, seen = domain.make_env(task), []
        await env.reset()
        for action in domain.script(task):
            seen.append(await env.step(action))
        return seen, await env.score(seen[-1])

    for task in domain.tasks("train")[:20]:
        seen, score = asyncio.run(solve(task))
        assert score.success and [o.text for o in seen[:-1]] == task.payload["outputs"]
        assert {o.label for o in seen} == {1}


def test_a_value_that_is_known_or_not_needed_is_no_progress(domain):
    task = next(task for task in domain.tasks("train") if task.payload["kind"] == TWO)
    first, second = task.payload["cells"]
    responses = [
        call_text("1234567"),
        call_text(first),
        call_text(first),
        "<tool_call>",
        call_text(second),
        "\\boxed{0}",
    ]
    seen = play(domain, task, *responses)
    assert [o.label for o in seen] == [-1, 1, -1, -1, 1, -1]
    assert [o.reason for o in seen] == [first, first, second, second, second, task.payload["answer"]]
    assert [o.reason for o in play(domain, task, "\\boxed{0}")] == [first]  # nobody knows the answer before the call


def test_a_value_that_a_solution_shows_twice_is_found_twice_and_by_the_call_that_was_due(domain):
    cells = ["n=4\nprint(n)", "n=n//2\nprint(n)", "n=2*n\nprint(n)", "n=n+1\nprint(n)"]
    row = {"question": "P", "answer": "5", "kind": TWO, "cells": cells, "outputs": ["4", "2", "4", "5"]}
    seen = play(domain, Task(id="p", payload=row), *map(call_text, [cells[0], "print(n)", *cells[1:]]), "\\boxed{5}")
    assert [o.label for o in seen] == [1, -1, 1, 1, 1, 1]
    assert [o.reason for o in seen] == [cells[0], cells[1], *cells[1:], "5"]


def test_what_is_due_in_a_demonstrated_judgement_is_what_the_environment_says(rows, tmp_path):
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with closing(make_domain(config_of(GENERATED_REASONING, tmp_path, grading="text", call_s=2.0))) as made:
        tasks = {task.payload["question"]: task for task in made.tasks("train")}
        for judged in islice(made.demonstrations("reward", "train", 0), 60):
            asked = judged.messages[-2]["content"]
            task = tasks[asked.splitlines()[0]]
            last = play(made, task, *steps_of(asked))[-1]
            turn = replace(judged.judged, reason=last.reason)
            assert judged.messages[-1]["content"] == made.judging.answer(task, turn)


def test_the_share_of_easy_demonstrations_is_what_the_options_say(rows, tmp_path):
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    easy = {row["question"] for row in rows if row["kind"] == EASY}
    for share in (0.1, 0.9):
        with closing(make_domain(config_of(GENERATED_REASONING, tmp_path, grading="text", easy_share=share))) as made:
            asked = [c.messages[0]["content"] for c in islice(made.demonstrations("policy", "train", 0), 200)]
        assert abs(sum(question in easy for question in asked) / 200 - share) < 0.1


def test_demonstrations_of_the_policy_call_or_answer_right_away_and_are_right(domain):
    answers = {task.payload["question"]: task.payload for task in domain.tasks("train")}
    called = {kind: [] for kind in (EASY, ONE, TWO)}
    for made in islice(domain.demonstrations("policy", "train", 0), 300):
        row = answers[made.messages[0]["content"]]
        said = [m["content"] for m in made.messages if m["role"] == "assistant"]
        assert boxed(said[-1]) == row["answer"] and [m["role"] == "assistant" for m in made.messages] == made.trained
        calls = [call.code for text in said[:-1] for call in read_calls(text)]
        assert calls in ([], row["cells"])
        called[row["kind"]].append(bool(calls))
    shares = {kind: sum(found) / len(found) for kind, found in called.items()}
    assert shares[EASY] < 0.35 < shares[ONE] < 0.85 and 0.35 < shares[TWO] < 0.85


def test_rewritten_problems_are_proven_and_go_up_or_down_by_a_kind(domain):
    kinds, seen = [EASY, ONE, TWO], set()
    [task, *_] = domain.tasks("train")

    async def prove(made):
        variant = domain.rewriting.parse(made.messages[-1]["content"], task, Direction.HARDER, "v")
        return await domain.rewriting.prove(variant)

    def kind_of(question):
        [family] = [f for f in FAMILIES if any(matches(wording, question) for wording in f.wordings)]
        return family.kind

    shown = [made.messages[0]["content"] for made in islice(domain.demonstrations("rewriter", "train", 0), 40)]
    assert 5 <= sum(asked.startswith("Original problem: ") for asked in shown) <= 20, "variants get variants, too"
    for made in islice(domain.demonstrations("rewriter", "train", 0), 40):
        variant, asked = asyncio.run(prove(made)), made.messages[0]["content"]
        [problem] = re.findall(r"^Problem: (.*)$", asked, re.MULTILINE)
        before = kind_of(problem)
        place = kinds.index(before) + (1 if asked.endswith("Make it harder.") else -1)
        assert kind_of(variant.payload["question"]) == kinds[min(max(place, 0), 2)]
        seen.add(before)
    assert seen == set(kinds)


def steps_of(asked):
    """The responses in a judge's prompt."""
    return re.findall(r"^> (<tool_call>.*?</tool_call>|.*?)$", asked, re.MULTILINE | re.DOTALL)


def matches(wording, question):
    """True if the question, or its end after an aside, has this wording."""
    pattern = re.sub(r"\\{[abc]\\}", r"\\d+", re.escape(wording))
    return re.search(rf"(^|[.:] ){pattern}$", question)


def test_judged_steps_are_right_and_wrong_and_what_was_due_decides_their_scores(domain):
    task_of = {task.payload["question"]: task for task in domain.tasks("train")}
    scores = []
    for made in islice(domain.demonstrations("reward", "train", 0), 60):
        [score, _] = domain.judging.parse(made.messages[-1]["content"], made.judged)
        asked = made.messages[0]["content"]
        task = task_of[asked.splitlines()[0]]
        seen = play(domain, task, *steps_of(asked))
        assert seen[-1].label == made.judged.label, asked
        guessed = task.payload["kind"] != EASY and len(seen) == 1 and boxed(made.judged.text)  # a call was due
        assert score == (-1 if guessed else seen[-1].label), asked
        scores.append(score)
    assert 0.2 < scores.count(1) / len(scores) < 0.8
