"""Problems whose answer is a program: the published columns, and what becomes of programs."""

import asyncio
import json
from contextlib import closing

import pytest
from builders import config_of, group, summaries, trajectory

from rlanything.domains.base import Observation
from rlanything.domains.reasoning.problems import check_row, is_program
from rlanything.domains.reasoning.prompts import asked
from rlanything.domains.registry import make_domain
from rlanything.domains.rows import BadProblem
from rlanything.evaluation.figures import summarise

STDIO = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
CALLED = {"inputs": json.dumps([[[1, 2]], [[5]]]), "outputs": json.dumps([3, 5]), "fn_name": "total"}
ASSERTED = {
    "import_prefix": "from typing import *\nLIMIT = 100\n",
    "test_code": "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate(x = [100]) == 100\n",
    "entry_point": "Solution().total",
}


def row(truth, **more):
    return {"problem": "Add.", "reward_model": {"ground_truth": json.dumps(truth), "style": "rule"}, **more}


def grade(tmp_path, truth, response):
    (tmp_path / "train.jsonl").write_text(json.dumps(row(truth)))

    async def play(domain):
        env = domain.make_env(domain.tasks("train")[0])
        first = await env.reset()
        return await env.step(domain.parse_action(response, first).action)

    with closing(make_domain(config_of("reasoning", tmp_path, grading="text", call_s=2.0))) as domain:
        return asyncio.run(play(domain))


@pytest.mark.parametrize(
    ("truth", "program", "results"),
    [
        (STDIO, "print(sum(map(int, input().split())))", ("ok", "ok")),
        (STDIO, "print(3)", ("ok", "wrong_answer")),
        (CALLED, "def total(x): return sum(x)", ("ok", "ok")),
        (CALLED, "def total(x): return x[0]", ("wrong_answer", "ok")),
        (ASSERTED, "class Solution:\n  def total(self, x: List[int]): return sum(x)", ("ok", "ok")),
        (ASSERTED, "class Solution:\n  def total(self, x): return x[0]", ("wrong_answer", "ok")),
        (ASSERTED, "class Solution:\n  def total(self, x): raise ValueError", ("runtime_error", "runtime_error")),
        (ASSERTED, "import os\nprint('right')\nos._exit(0)", ("wrong_answer", "wrong_answer")),
        (
            ASSERTED,  # a result that equals everything is no result
            "class A:\n  def __eq__(self, o): return True\nclass Solution:\n  def total(self, x): return A()",
            ("runtime_error", "runtime_error"),
        ),
    ],
)
def test_programs_are_tried_on_the_tests_of_published_rows(tmp_path, truth, program, results):
    seen = grade(tmp_path, truth, f"I add.\n```python\n{program}\n```\nSo \\boxed{{7}}.")
    assert seen.results == results and seen.success is all(r == "ok" for r in results) and seen.done


def test_keywords_of_asserts_stand_in_one_order():
    code = "assert f(5, a=1, b=2) == 3\nassert f(5, b=4, a=3) == -1\ndef check(g):\n  assert g(1) == 2"
    payload = check_row(row({"test_code": code, "entry_point": "f"}))
    assert payload["tests"] == [["5\n1\n2", "3"], ["5\n3\n4", "-1"], ["1", "2"]]


def test_a_box_is_no_program_and_a_program_no_box(tmp_path):
    seen = grade(tmp_path, STDIO, "\\boxed{3}")
    assert (seen.results, seen.invalid, seen.success) == (("void",), True, False)
    (tmp_path / "train.jsonl").write_text(json.dumps({"question": "6 * 7?", "answer": "42"}))

    async def play(domain):
        env = domain.make_env(domain.tasks("train")[0])
        first = await env.reset()
        parsed = domain.parse_action("I would try\n```\nx = 42\n```\nbut I do not know.", first)
        return parsed.kind, (await env.step(parsed.action)).results

    with closing(make_domain(config_of("reasoning", tmp_path, grading="text"))) as domain:
        assert asyncio.run(play(domain)) == ("void", ("void",))


def test_a_stray_box_on_a_problem_with_tests_breaks_no_figure(tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps(row(STDIO)))
    with closing(make_domain(config_of("reasoning", tmp_path, grading="text"))) as domain:
        played = group(trajectory(1, [()]), trajectory(-1, [()]), task=domain.tasks("train")[0])
        assert domain.same_answer(played.task, "7") == "7"
        figures = summarise(summaries([played], domain.same_answer), domain.kind)
        assert figures["pass@2"] == 1.0 and "maj@2" not in figures
        env = domain.make_env(played.task)
        assert asyncio.run(env.score(Observation("", done=True))).answer is None


def test_rows_hold_tests_as_objects_or_as_texts_and_say_what_is_asked():
    texts = {"problem": "Add.", "reward_model": json.dumps({"ground_truth": json.dumps(STDIO)}), "ability": "code"}
    for made in (row(STDIO), texts, {"question": "Add.", "test_input": STDIO["inputs"], "test_output": ["3", "7"]}):
        payload = check_row(made)
        assert is_program(payload) and [test[0] for test in payload["tests"]] == STDIO["inputs"]
    assert check_row(texts)["kind"] == "code"
    assert "reads standard input" in asked(check_row(texts), ["numpy"], "full")
    assert "defines total" in asked(check_row(row(CALLED)), None, "full")
    assert "defines Solution.total" in asked(check_row(row(ASSERTED)), None, "full")
    beside = {"question": "P", "answer": "5", "reward_model": {"style": "rule"}, "solution": '{"steps": ["a"]}'}
    assert check_row(beside)["answer"] == "5"
    assert is_program(check_row({"question": "P", "solution": CALLED}))


@pytest.mark.parametrize(
    ("truth", "fault"),
    [
        ({"inputs": ["1"], "outputs": []}, "test_output"),
        ({"inputs": ["1", "2"], "outputs": ["1"]}, "as many"),
        ({"code": "?"}, "answer: none of the fields"),
        ({"test_code": "def check(", "entry_point": "f"}, "test_code: expected asserts"),
        ({"test_code": "assert candidate(tree([1])) == 2", "entry_point": "f"}, "test_code: expected asserts"),
        ({"test_code": "assert candidate(1) < 2", "entry_point": "f"}, "test_code: expected asserts"),
        ({"test_code": "x = 1", "entry_point": "f"}, "test_input"),
        ({"test_code": "assert helper(1) == 2", "entry_point": "f"}, "test_code: expected asserts"),
        ({"test_code": "for i in []:\n  assert f(1) == 2", "entry_point": "f"}, "within another statement"),
        ({"test_code": "if 0:\n  assert f(1) == 2\nassert f(1) == 3", "entry_point": "f"}, "within another"),
        ({"test_code": "assert f({1: 2}) == 2", "entry_point": "f"}, "keys that are no texts"),
        ({"test_code": "assert f([({'a': [{1: 2}]},)]) == 2", "entry_point": "f"}, "keys that are no texts"),
        ({"test_code": "assert f(a=1, a=2) == 2", "entry_point": "f"}, "test_code: expected asserts"),
        ({"test_code": "assert f(a=1) == 2\nassert f(b=1) == 2", "entry_point": "f"}, "keywords that differ"),
        ({"test_code": "assert f(*[1]) == 2", "entry_point": "f"}, "test_code: expected asserts"),
        ({"test_code": "assert f(**{'a': 1}) == 2", "entry_point": "f"}, "test_code: expected asserts"),
    ],
)
def test_rows_with_broken_tests_are_named(truth, fault):
    with pytest.raises(BadProblem, match=fault):
        check_row(row(truth))
