"""The rewriter's problems are proven by their programs before anybody plays them."""

import asyncio
import json
from contextlib import closing

import pytest
from builders import config_of, group, judgement, trajectory

from rlanything.domains.parts import RejectedTask
from rlanything.domains.reasoning.rewriting import ReasoningRewriting
from rlanything.domains.registry import make_domain
from rlanything.types import Direction, Score, Task

TASK = Task(id="t", payload={"question": "What is 2 + 2?", "answer": "4", "kind": "easy"})


@pytest.fixture(scope="module")
def rewriting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("problems")
    (folder / "train.jsonl").write_text(json.dumps(TASK.payload))
    with closing(make_domain(config_of("reasoning", folder, grading="text", call_s=1.0))) as domain:
        yield domain.rewriting


def propose(rewriting, question, program, task=TASK):
    text = "Some thoughts. " + json.dumps({"question": question, "program": program})
    return asyncio.run(rewriting.prove(rewriting.parse(text, task, Direction.HARDER, "t~1")))


def test_the_printed_answer_is_the_truth_and_the_program_is_no_part_of_the_task(rewriting):
    made = propose(rewriting, "What is 23 * 19?", "print(23 * 19)")
    assert made.payload == {"question": "What is 23 * 19?", "answer": "437", "kind": "easy", "root": "What is 2 + 2?"}
    assert (made.id, made.parent_id, made.root_id, made.direction) == ("t~1", "t", "t", Direction.HARDER)
    again = propose(rewriting, "And 23 * 20?", "from __future__ import annotations\nprint(f'{23 * 20}')", task=made)
    assert again.payload["answer"] == "460" and again.payload["root"] == "What is 2 + 2?"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print(1/0)", "program_failed"),
        ("while True: pass", "program_slow"),
        ("pass", "program_answer"),
        ("print(1)\nprint(2)", "program_answer"),
        ("print('x' * 400)", "program_answer"),
        ("import random\nprint(random.random())", "program_random"),
        ("import random\nprint(random.choice(range(10**6)))", "program_random"),
        ("import time\nprint(time.time_ns())", "program_random"),
        ("raise SystemExit(3)", "program_failed"),
        ("  ", "schema"),
        (7, "schema"),
        ("print('\ud800')", "schema"),
        ("#" * 30_000, "too_large"),
    ],
)
def test_a_program_that_proves_nothing_is_refused_by_its_reason(rewriting, program, reason):
    with pytest.raises(RejectedTask) as refused:
        propose(rewriting, "What is 7 * 8?", program)
    assert refused.value.reason == reason, refused.value


def test_the_same_question_and_no_question_are_refused(rewriting):
    with pytest.raises(RejectedTask, match="unchanged"):
        propose(rewriting, "What is  2 + 2? ", "print(4)")
    with pytest.raises(RejectedTask, match="no_proposal"):
        rewriting.parse("print(4)", TASK, Direction.HARDER, "t~1")


def test_the_rewriter_reads_the_answers_and_what_the_judge_said_in_words(rewriting):
    played = group(*(trajectory(outcome, [()]) for outcome in (1, -1, -1, -1)), task=TASK)
    for episode, answer in zip(played.trajectories, ("4", "5", "5", None), strict=True):
        episode.score = Score(success=episode.success, answer=answer)
    assert rewriting.critic(played) == "Answers: 5 (wrong) x2, 4 (right) x1, none (wrong) x1."
    played.judgements = [judgement({(1, 0): -1}, text="It adds wrongly. \\boxed{-1}")]
    assert "adds wrongly" not in rewriting.critic(played), "compact prompts hold the answers alone"
    full = ReasoningRewriting("full", rewriting.programs, rewriting.time_s)
    assert "- bad x1: text: It adds wrongly. \\boxed{-1}" in full.critic(played)
    played.trajectories[0].score = Score(success=True, answer="4" * 5000)
    assert len(rewriting.critic(played)) < 700
    [asked] = rewriting.messages(TASK, Direction.EASIER, 0.25, "Answers: none.")
    assert asked["content"] == "Problem: What is 2 + 2?\nSolved: 25%\nAnswers: none.\nMake it easier."
