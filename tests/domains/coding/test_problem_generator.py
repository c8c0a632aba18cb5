"""Generated problems: the solutions do what the statements say, and the tests prove it."""

import asyncio
import json
import random
import re
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from builders import config_of
from coding_problems import GENERATED, generator
from coding_problems.domain import GeneratedProblems, vary, worked_out
from coding_problems.operations import ANSWER, NUMBERS, OPERATIONS, WORD

from rlanything.config.load import load_sft
from rlanything.config.schema import SandboxConfig
from rlanything.domains.coding import prompts
from rlanything.domains.coding.domain import CodingDomain
from rlanything.domains.coding.problems import Check, check_row
from rlanything.domains.registry import domain_class
from rlanything.errors import TaskError
from rlanything.sandbox.kernel import SUPPORTED
from rlanything.types import Direction

ROOT = Path(__file__).parents[3]
EXAMPLES = {  # operation -> (input, k, what a chain of it and "show" or "say" prints), worked out from the words alone
    "divide": ("7 -3", "2", "3 -2"),
    "remainder": ("7 -3", "4", "3 1"),
    "cap": ("1 5 9", "5", "1 5 5"),
    "raise": ("1 5 9", "5", "5 5 9"),
    "odd": ("-3 2 1", "", "-3 1"),
    "below": ("4 5 6", "5", "4"),
    "distinct": ("3 1 3 2 1", "", "3 1 2"),
    "descending": ("3 1 2", "", "3 2 1"),
    "alternate": ("1 2 3 4 5", "", "1 3 5"),
    "totals": ("1 2 3", "", "1 3 6"),
    "differences": ("1 4 2", "", "3 -2"),
    "last": ("1 2 3", "2", "2 3"),
    "behead": ("abcd", "1", "bcd"),
    "unique": ("abca", "", "abc"),
    "mirror": ("ab", "", "abba"),
    "letters": ("cab", "", "abc"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_operation_does_what_its_words_say(name):
    given, k, expected = EXAMPLES[name]
    operation = OPERATIONS[name]
    chain = [[name, {"k": k} if k else {}], ["show" if operation.takes == NUMBERS else "say", {}]]
    assert generator.answer(generator.solution(chain), given) == expected


def test_an_answer_is_worked_out_step_by_step():
    chain = [["multiply", {"k": "3"}], ["even", {}], ["sum", {}]]
    assert worked_out(chain, "2 5 4") == "6 15 12 -> 6 12"
    assert worked_out([["even", {}], ["count", {}]], "1 3") == "nothing"
    assert worked_out([["backwards", {}], ["length", {}]], "abc") == "cba"
    assert worked_out([["length", {}]], "abc") == ""


@pytest.mark.slow
def test_there_are_enough_operations_and_all_of_them_occur():
    assert len(OPERATIONS) >= 40
    rows = generator.generate_problems(1500, seed=0)
    counts = Counter(name for row in rows for name, _ in row["chain"])
    assert set(counts) == set(OPERATIONS)
    assert len({row["solution"] for row in rows}) == 1500 and len({row["question"] for row in rows}) > 1400


def test_rows_are_problems_and_repeat_by_their_seed():
    rows = generator.generate_problems(200, seed=1)
    assert rows == generator.generate_problems(200, seed=1)
    for row in rows:
        payload = check_row(json.loads(json.dumps(row)))
        assert len(payload["tests"]) == generator.NUM_TEST and "{" not in payload["question"]
        assert len({output for _, output in payload["tests"]}) > 1, "a program that always prints the same would pass"
    others = generator.generate_problems(200, seed=2, without=rows)
    assert not {row["solution"] for row in rows} & {row["solution"] for row in others}


def test_asking_for_more_problems_than_exist_is_refused():
    known = generator.generate_problems(25, seed=0, length=1)
    with pytest.raises(TaskError, match="ask for fewer"):
        generator.generate_problems(20, seed=1, without=known, length=1)


def test_a_variant_is_one_operation_longer_or_shorter_and_has_tests():
    rng = random.Random(0)
    for row in generator.generate_problems(200, seed=3):
        for harder in (True, False):
            chain = vary(row["chain"], harder, rng)
            assert len(chain) == max(1, len(row["chain"]) + (1 if harder else -1)) and chain != row["chain"]
            assert OPERATIONS[chain[-1][0]].gives == ANSWER
            assert {OPERATIONS[name].takes for name, _ in chain} in ({NUMBERS}, {WORD})


@pytest.fixture
def domain(tmp_path):
    (tmp_path / "train.json").write_text(json.dumps(generator.generate_problems(60, seed=4)))
    domain = GeneratedProblems(config_of("coding", tmp_path, sandbox=SandboxConfig(num_runner=4)))
    yield domain
    domain.close()


@pytest.mark.skipif(not SUPPORTED, reason="the sandbox needs Linux")
def test_solutions_pass_their_tests_and_demonstrated_tests_in_the_sandbox(domain):
    tasks = {task.id: task for task in domain.tasks("train")}

    async def all_pass():
        own = [
            domain.judging.passes(t, domain.judging.reference(t), Check(*test))
            for t in tasks.values()
            for test in t.payload["tests"]
        ]
        shown = islice(domain.demonstrations("reward", "train", 0), 60)
        tests = [(tasks[c.key], domain.judging.parse(c.messages[-1]["content"], tasks[c.key])[0]) for c in shown]
        return await asyncio.gather(
            *own, *(domain.judging.passes(t, domain.judging.reference(t), test) for t, test in tests)
        )

    assert set(asyncio.run(all_pass())) == {1}


def test_demonstrated_variants_are_accepted_proposals(domain):
    tasks = {task.id: task for task in domain.tasks("train")}
    for conversation in islice(domain.demonstrations("rewriter", "train", 0), 40):
        asked, said = (conversation.messages[i]["content"] for i in (0, -1))
        direction = Direction.HARDER if asked.endswith("Make it harder.") else Direction.EASIER
        variant = domain.rewriting.parse(said, tasks[conversation.key], direction, "q#1")
        assert len(variant.payload["tests"]) == prompts.MIN_TESTS and "Of 8 programs" in asked


def test_demonstrations_show_the_rewriter_the_same_critic_as_the_loop(domain):
    def shape(line):
        return re.sub(r"(#, )*#", "#", re.sub(r"\d+( \(doubtful\))?", "#", line))

    domain.options.num_test = 2
    asked = [c.messages[0]["content"] for c in islice(domain.demonstrations("rewriter", "train", 0), 60)]
    critic = prompts.critic(8, [0, 7], [(3, False), (8, True)], {"wrong_answer": 9}).splitlines()
    assert {shape(line) for line in critic} <= {shape(line) for text in asked for line in text.splitlines()}
    assert all(re.search(r"passed its tests: \d, \d\.", text) for text in asked)
    assert any("(doubtful)" in text for text in asked) and any(re.search(r"by: \d,", text) for text in asked)


def test_without_solutions_there_are_no_demonstrations(domain, tmp_path):
    rows = [
        {k: v for k, v in row.items() if k not in ("solution", "chain")} for row in generator.generate_problems(3, 0)
    ]
    (tmp_path / "bare.json").write_text(json.dumps(rows))
    for role, needed in (("policy", "solution"), ("rewriter", "chain")):
        with pytest.raises(TaskError, match=f"no problem has a {needed}"):
            domain.demonstrations(role, "bare", 0)
    with pytest.raises(TaskError, match=f"no demonstrations for the rewriter.*dataset.domain={GENERATED}"):
        CodingDomain(domain.config).demonstrations("rewriter", "train", 0)


@pytest.mark.parametrize("role", ["reward", "rewriter"])
def test_the_quickstart_s_warm_start_knows_how_its_problems_were_made(role):
    config = load_sft([f"config={ROOT}/configs/quickstart/coding/{role}.yaml"])
    assert config.dataset.domain == GENERATED and domain_class(GENERATED).__name__ == "GeneratedProblems"


def test_the_script_writes_three_splits_that_share_no_problem(tmp_path):
    line = [
        sys.executable,
        f"{ROOT}/scripts/generate_problems.py",
        "--out",
        str(tmp_path),
        "--train",
        "50",
        "--eval",
        "20",
    ]
    subprocess.run(line, check=True, capture_output=True, timeout=120)
    solutions = {
        split.stem: {row["solution"] for row in json.loads(split.read_text())} for split in tmp_path.glob("*.json")
    }
    assert {name: len(rows) for name, rows in solutions.items()} == {
        "train": 50,
        "eval_in_distribution": 20,
        "eval_out_of_distribution": 20,
    }
    assert len(set().union(*solutions.values())) == 90
