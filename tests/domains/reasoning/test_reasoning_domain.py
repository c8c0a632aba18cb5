"""The domain: rows, prompts, and what becomes of calls and answers."""

import asyncio
import json
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import config_of
from chat_families import FAMILIES, write_tokenizer

from rlanything.config.schema import ModelConfig
from rlanything.domains.base import Observation, Step
from rlanything.domains.reasoning.answers import same
from rlanything.domains.reasoning.calls import TOOL_NAME, call_text
from rlanything.domains.reasoning.problems import check_row, is_choice
from rlanything.domains.registry import make_domain
from rlanything.domains.rows import BadProblem
from rlanything.engines.chat import Chat
from rlanything.errors import ConfigError, TaskError
from rlanything.plan.models import check_tools
from rlanything.types import Task

ROWS = [
    {"question": "What is 6 * 7?", "answer": 42, "kind": "easy", "task_id": "q1"},
    {"question": "Which is a fruit?", "choices": ["stone", "apple"], "answer": "apple"},
    {"question": "Simplify.", "answer": "2\\sqrt{2}"},
]


@pytest.fixture
def make(tmp_path):
    """make(rows, **options): the domain on these rows."""
    made = []

    def domain(rows=ROWS, **options):
        (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
        made.append(make_domain(config_of("reasoning", tmp_path, **{"grading": "text", "call_s": 2.0} | options)))
        return made[-1]

    yield domain
    for each in made:
        each.close()


def play(domain, *responses, task=0):
    """The observations of an episode, the parsed actions, and the score."""

    async def run():
        with closing(domain):
            env, seen, parsed = domain.make_env(domain.tasks("train")[task]), [], []
            last = await env.reset()
            for response in responses:
                parsed.append(domain.parse_action(response, last))
                seen.append(last := await env.step(parsed[-1].action))
            return seen, parsed, await env.score(last)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("row", "payload"),
    [
        (ROWS[0], {"question": "What is 6 * 7?", "answer": "42", "kind": "easy", "task_id": "q1"}),
        (ROWS[1], {"question": "Which is a fruit?", "choices": ["stone", "apple"], "answer": "B", "kind": "problem"}),
        (
            ROWS[1] | {"answer": "(B)"},
            {"question": "Which is a fruit?", "choices": ["stone", "apple"], "answer": "B", "kind": "problem"},
        ),
        (
            {"question": "P", "answer": 1, "choices": ["x", "y"]},
            {"question": "P", "choices": ["x", "y"], "answer": "B", "kind": "problem"},
        ),
        (
            {"question": "P", "answer": 1.0, "choices": ["x", "y" * 400]},
            {"question": "P", "choices": ["x", "y" * 400], "answer": "B", "kind": "problem"},
        ),
        (
            {"question": "P", "answer": "y" * 400, "choices": ["x", "y" * 400]},
            {"question": "P", "choices": ["x", "y" * 400], "answer": "B", "kind": "problem"},
        ),
        (
            {"question": "P", "answer": [], "final_answer": "We see. " * 60, "solution": "\\boxed{5}"},
            {"question": "P", "answer": "5", "kind": "problem"},
        ),
        (
            {"question": "P", "answer": 4, "choices": [2, 4, 8]},
            {"question": "P", "choices": ["2", "4", "8"], "answer": "B", "kind": "problem"},
        ),
        ({"problem": "P", "final_answer": ["7"]}, {"question": "P", "answer": "7", "kind": "problem"}),
        ({"question": "P", "answer": "6 * 12\n#### 72"}, {"question": "P", "answer": "72", "kind": "problem"}),
        (
            {"problem": "P", "solution": "So it is \\boxed{\\text{even}}."},
            {"question": "P", "answer": "even", "kind": "problem"},
        ),
        (
            {"question": "P", "answer": "7", "task_id": 1.0},
            {"question": "P", "answer": "7", "kind": "problem", "task_id": "1"},
        ),
        ({"Problem": "P", "Answer": 70}, {"question": "P", "answer": "70", "kind": "problem"}),
        ({"problem": "P", "solution": "C", "domain": "physics"}, {"question": "P", "answer": "C", "kind": "physics"}),
        (
            {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": " P "}], "data_source": "dapo",
             "reward_model": {"ground_truth": "1/2", "style": "rule"}, "question": None},
            {"question": "P", "answer": "1/2", "kind": "dapo"},
        ),
        (
            {"question": "P", "answer": 0.5, "task_id": 3},
            {"question": "P", "answer": "0.5", "kind": "problem", "task_id": "3"},
        ),
    ],
)  # fmt: skip
def test_rows_of_published_sets_are_read_as_they_are(row, payload):
    assert check_row(row) == payload


@pytest.mark.parametrize(
    "answer", [r"10,\!080", r"10\,000", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\mathbb{R}", r"5\text{ cm}"]
)
def test_the_answer_of_a_worked_solution_keeps_its_latex(answer):
    truth = check_row({"problem": "P", "solution": f"So it is \\boxed{{{answer}}}."})["answer"]
    assert truth == answer and same(answer, truth).right


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([], "expected an object"),
        ({"answer": "1"}, "question: none of the fields"),
        ({"question": "  ", "answer": "1"}, "question: none of the fields"),
        ({"question": "P"}, "answer: none of the fields"),
        ({"question": "P", "answer": " "}, "answer: none of the fields"),
        ({"question": "P", "answer": "6 * 12\n#### "}, "answer: none of the fields"),
        ({"question": "P", "answer": True}, "answer: found True, expected one answer"),
        ({"question": "P", "answer": ["5", "7"], "solution": "So \\boxed{5}."}, "answer: found .* expected one answer"),
        ({"question": "P", "solution": "We see that it is so. " * 20}, "expected a short answer"),
        ({"problem": "P", "solution": "We add two and three to get five."}, "solution has no box"),
        ({"question": "P", "answer": float("nan")}, "answer: none of the fields"),
        ({"prompt": [{"role": "assistant", "content": "P"}], "answer": "1"}, "question: none of the fields"),
        ({"question": "P", "reward_model": {"ground_truth": '{"inputs": ["1"]}'}}, "answer: none of"),
        ({"question": "P", "answer": {"test_code": "x"}}, "answer"),
        ({"question": "P", "answer": "z", "choices": ["x", "y"]}, "one of the choices"),
        ({"question": "P", "answer": 2, "choices": ["x", "y"]}, "its place from 0"),
        ({"question": "P", "answer": -1, "choices": ["x", "y"]}, "its place from 0"),
        ({"question": "P", "answer": 1, "choices": ["1", "2", "3"]}, "its place from 0"),
        ({"question": "P", "answer": "A proton", "choices": ["x", "a proton"]}, "one of the choices"),
        ({"question": "P", "ground_truth": '{\n "inputs": ["1"]}'}, "answer: none of"),
        ({"question": "P", "ground_truth": '[{"input": "1"}]'}, "answer: none of"),
        ({"question": "P", "answer": "C", "choices": ["x", "y"]}, "one of the choices"),
        ({"question": "P", "answer": "x", "choices": ["x"]}, "2 to 10 different texts"),
        ({"question": "P", "answer": "x", "choices": "xy"}, "2 to 10 different texts"),
        ({"question": "P\ud800", "answer": "1"}, "half a character"),
    ],
)
def test_a_row_that_is_no_problem_says_why(row, said):
    with pytest.raises(BadProblem, match=said):
        check_row(row)


def test_a_choice_in_brackets_is_one_and_an_empty_kind_is_none():
    named = check_row({"question": "P: (A) x (B) y", "answer": "(B)", "kind": ""})
    assert is_choice(named) and named["answer"] == "B" and named["kind"] == "problem"
    assert check_row({"question": "P", "kind": " ", "test_input": ["1"], "test_output": ["1"]})["kind"] == "problem"
    assert check_row({"question": "P", "solution": "34"})["answer"] == "34"


def test_bad_rows_stop_a_run_by_their_place_or_are_left_out(make, tmp_path, caplog):
    rows = [ROWS[0], {"question": "P"}, ROWS[0]]
    with pytest.raises(TaskError, match="line 2: answer: none of the fields.*skip_bad=true"):
        make(rows).tasks("train")
    assert [task.id for task in make(rows, skip_bad=True).tasks("train")] == ["q1"] and "2 bad rows" in caplog.text
    with pytest.raises(TaskError, match="holds no usable problem"):
        make([{"question": "P"}], skip_bad=True).tasks("train")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"text": ["6 * 7 = 42"], "label": [1]},
            "question: none of the fields question, problem, .*the row has text, label",
        ),
        (
            {"problem": ["6 * 7?"], "label": ["42"]},
            "answer: none of the fields answer, Answer, .*the row has problem, label",
        ),
        ({"prompt": [[{"role": "user", "content": "P"}]], "reward_model": [{"style": "rule"}]}, "answer: none of .*"),
    ],
)
def test_a_parquet_file_without_the_columns_is_refused_by_name(tmp_path, columns, said):
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    for skip_bad, place in (
        (False, "train.parquet, row 0: "),
        (True, "train.parquet: holds no usable problem.*row 0: "),
    ):
        options = {"grading": "text", "skip_bad": skip_bad}
        with closing(make_domain(config_of("reasoning", tmp_path, **options))) as domain:
            with pytest.raises(TaskError, match=place + said):
                domain.tasks("train")


def test_parquet_of_conversations_is_read(tmp_path, make):
    rows = [{"prompt": [{"role": "user", "content": "P"}], "reward_model": {"ground_truth": "7"}, "data_source": "x"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "published.parquet")
    [task] = make().tasks("published")
    assert task.payload == {"question": "P", "answer": "7", "kind": "x"}


def test_a_call_is_answered_as_a_tool_and_the_answer_ends_the_episode_without_a_word(make):
    domain = make()
    seen, parsed, score = play(domain, "I compute. " + call_text("x = 6\nx * 7"), call_text("x"), "So \\boxed{42}.")
    assert [o.text for o in seen] == ["42", "6", ""] and [p.kind for p in parsed] == ["call", "call", "answer"]
    assert domain.answer(seen[0]) == [{"role": "tool", "content": "42"}]
    assert [o.done for o in seen] == [False, False, True] and score.success and score.answer == "42"
    assert seen[-1].results == ("ok (text)",) and not any(o.invalid for o in seen)


@pytest.mark.parametrize(
    ("answer", "results"), [("42", ("ok (text)",)), ("42.0", ("ok (number)",)), ("six", ("wrong (text)",))]
)
def test_the_verdict_on_an_answer_names_the_rule_that_decided(make, answer, results):
    seen, _, score = play(make(), f"\\boxed{{{answer}}}")
    assert seen[0].results == results and score.success is results[0].startswith("ok")


def test_a_step_may_take_as_long_as_all_calls_of_a_response(make):
    domain = make(session_s=60.0)
    domain.config.rollout.env_timeout_s = 5 * 60 + 16
    with pytest.raises(ConfigError, match="rollout.env_timeout_s: found 316, expected more than 316, .*session_s"):
        domain.prepare(["train"])
    domain.config.rollout.env_timeout_s += 1
    domain.prepare(["train"])
    without = make(session_s=60.0, tool=False)
    without.config.rollout.env_timeout_s = 1.0
    without.prepare(["train"])


def test_several_calls_of_a_response_are_all_answered_in_order(make):
    domain = make()
    broken = "<tool_call>{broken}</tool_call>"
    seen, parsed, _ = play(domain, call_text("x = 1") + broken + call_text("x + 1") + call_text("1 / 0"))
    first, second, third, fourth = (message["content"] for message in domain.answer(seen[0]))
    assert first.startswith("(no output") and second.startswith("Error: the call is no JSON") and third == "2"
    assert fourth.endswith("ZeroDivisionError: division by zero") and not seen[0].invalid
    assert seen[0].results == ("ok", "unreadable", "ok", "exception") and "no JSON" in parsed[0].error


def test_a_call_that_cannot_be_read_goes_on_and_counts_as_invalid(make):
    seen, parsed, score = play(make(), "<tool_call>print(6 * 7)</tool_call>", "\\boxed{42}")
    assert seen[0].invalid and not seen[0].done and parsed[0].kind == "unreadable" and score.success


@pytest.mark.parametrize("response", ["", "The answer is 42.", "<think>\\boxed{42}</think>", "\\boxed{42"])
def test_a_response_with_neither_call_nor_box_ends_the_episode_unsolved(make, response):
    seen, parsed, score = play(make(), response)
    assert seen[0].done and seen[0].invalid and seen[0].results == ("void",) and parsed[0].kind == "void"
    assert not score.success and score.answer == ""


def test_a_box_in_a_tools_output_or_a_thought_is_no_answer(make):
    seen, _, score = play(make(), call_text("print(r'\\boxed{42}')"), "<think>\\boxed{42}</think> no")
    assert "\\boxed{42}" in seen[0].text and not score.success and seen[-1].results == ("void",)


def test_a_call_beside_a_box_is_a_call(make):
    seen, parsed, _ = play(make(), f"\\boxed{{1}} {call_text('2')}")
    assert parsed[0].kind == "call" and seen[0].text == "2" and not seen[0].done


def test_calls_beyond_the_limit_are_answered_and_not_executed(make):
    seen, _, score = play(make(max_calls=1), call_text("1"), call_text("2"), "\\boxed{42}")
    assert seen[1].text == "Error: no calls are left; give the answer." and seen[1].results == ("no_calls_left",)
    assert score.success


def test_a_choice_is_graded_by_its_letter(make):
    for response, right in (
        ("\\boxed{B}", True),
        ("\\boxed{(B) apple}", True),
        ("\\boxed{apple}", False),
        ("\\boxed{A}", False),
    ):
        assert play(make(), response, task=1)[2].success is right


def test_prompts_say_what_the_answer_is_and_what_code_may_import(make):
    domain = make()
    tasks = domain.tasks("train")
    domain.config.sandbox.packages = ["numpy", "sympy"]
    domain.config.dataset.prompt = "full"
    [value], [letter] = (domain.opening(task, Observation("")) for task in tasks[:2])
    assert "\\boxed{}" in value["content"] and "Installed: numpy, sympy." in value["content"]
    assert "A. stone\nB. apple" in letter["content"] and "letter" in letter["content"]
    tested = {"question": "P", "test_input": ["71"], "test_output": ["72"]}
    [program] = domain.opening(Task(id="p", payload=check_row(tested)), Observation(""))
    assert "```python" in program["content"] and "code_interpreter" in program["content"]
    assert "71" not in program["content"] and "72" not in program["content"], "its tests grade it"
    assert [t["function"]["name"] for t in domain.tools()] == [TOOL_NAME]
    domain.config.dataset.prompt = "compact"
    assert domain.opening(tasks[0], Observation(""))[0]["content"] == ROWS[0]["question"] and domain.tools() == []


def test_without_the_tool_every_response_is_an_answer(make):
    domain = make(tool=False)
    assert domain.tools() == []
    seen, parsed, score = play(domain, f"{call_text('6 * 7')} \\boxed{{42}}")
    assert seen[0].done and score.success and parsed[0].kind == "answer"


def test_a_conversation_told_anew_holds_calls_and_outputs(make):
    domain = make()
    seen, parsed, _ = play(domain, call_text("6 * 7"))
    step = Step(response=call_text("6 * 7"), action=parsed[0].action, observation=seen[0])
    told = domain.retold(domain.tasks("train")[0], Observation(""), [step])
    assert [message["role"] for message in told] == ["user", "assistant", "tool"] and told[-1]["content"] == "42"


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3", "qwen3-coder"])
def test_calls_are_read_as_the_template_writes_them(make, tmp_path, family):
    check_tools(
        {"policy": Chat(ModelConfig(path=str(write_tokenizer(FAMILIES[family], tmp_path / "model"))))}, full(make)
    )


@pytest.mark.parametrize("family", ["llama3", "mistral"])
def test_a_template_of_another_form_is_refused_by_what_it_writes(make, tmp_path, family):
    chat = Chat(ModelConfig(path=str(write_tokenizer(FAMILIES[family], tmp_path / "model"))))
    with pytest.raises(TaskError, match="its chat template writes a tool call as .*print.*hermes form"):
        check_tools({"policy": chat}, full(make))


def full(make):
    domain = make()
    domain.config.dataset.prompt = "full"
    return domain


def test_a_plan_counts_a_call_of_the_tool_in_every_turn_as_far_as_calls_are_executed(make):
    for options, calls in (({}, 7), ({"max_calls": 2}, 2), ({"tool": False}, 0)):
        domain = make(**options)
        rollout = domain.config.rollout
        rollout.num_trial, rollout.num_rollout_per_trial, rollout.max_interaction_step = 3, 5, 7
        domain.config.adaptation.max_candidate, domain.config.adaptation.enabled = 2, True
        assert domain.executions(domain.tasks("train")) == (3 + 2) * 5 * calls
        domain.config.adaptation.enabled = False
        assert domain.executions(domain.tasks("train")) == 15 * calls
