"""Grading: what models write for a value, against the truth. Each verdict names its rule."""

import asyncio
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from rlanything.config.schema import SandboxConfig
from rlanything.domains.base import SandboxFailure
from rlanything.domains.reasoning.answers import boxed, choice, normal, number, same, same_choice
from rlanything.domains.reasoning.grading import Grader

DATA = Path(os.environ.get("RLANYTHING_SHARED", Path(__file__).resolve().parents[4] / "shared")) / "data/reasoning"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"benchmark rows are not at {DATA}")

# (answer, truth): right as text or as a number
RIGHT = [
    ("25\\,000", "25000"), ("1\\ 000\\ 000", "1000000"), ("10,\\!000", "10000"), ("\u20135", "-5"),
    ("1e3", "1000"), ("9.11e-31", "9.11E-31"),
    ("70", "70"), ("070", "70"), ("70.0", "70"), ("70.", "70"), (" 70 ", "70"), ("'70'", "70"), ('"70"', "70"),
    ("$70$", "70"),
    ("\\(70\\)", "70"), ("+70", "70"), ("\\text{70}", "70"), ("\\mathrm{70}", "70"), ("\\mathbf{70}", "70"),
    ("\\boxed{70}", "70"),
    ("1,234", "1234"), ("1{,}234", "1234"), ("1,234,567", "1234567"), ("1,234.5", "1234.5"), ("-1,234", "-1234"),
    ("\u22125", "-5"), ("-5", "-5"), ("- 5".replace(" ", ""), "-5"), ("0.5", "1/2"), (".5", "0.5"), ("0.50", "0.5"),
    ("1/2", "2/4"),
    ("\\frac{1}{2}", "0.5"), ("\\dfrac{1}{2}", "\\frac{1}{2}"), ("\\tfrac12", "\\frac{1}{2}"), ("\\frac12", "1/2"),
    ("-\\frac{3}{4}", "-0.75"),
    ("\\frac{-3}{4}", "-0.75"), ("\\frac{10}{4}", "2.5"), ("\\frac 1 2", "1/2"), ("3/1", "3"), ("-0", "0"),
    ("0.0", "0"), ("00012", "12"),
    ("x^2", "x^2"), ("(1,\\,2)", "(1, 2)"), ("\\text{even}", "even"), ("{}5", "5"),
    ("\\displaystyle 5", "5"), ("5\\,", "5"), ("5.", "5"), ("\\pi", "\\pi"), ("C", "\\text{C}"),
    ("\\$5\\$".replace("\\$", "$"), "5"),
    ("12345678901234567890", "12345678901234567890"), ("0.1", "1/10"), ("\\mbox{yes}", "yes"),
    ("``70''".replace("`", "'"), "70"),
    ("Even", "even"), ("\\text{Yes}", "yes"), ("NO SOLUTION", "no solution"),
]  # fmt: skip
# wrong as text or as a number
WRONG = [
    ("seat", "east"), ("on", "no"), ("yes", "no"), ("cat dog", "dog cat"),
    ("1e3", "1001"),
    ("71", "70"), ("7", "70"), ("700", "70"), ("-70", "70"), ("70.1", "70"), ("1/3", "0.333"),
    ("0.3333333333", "1/3"), ("", "70"),
    ("  ", "70"), ("$$", "70"), ("b", "B"), ("x", "y"), ("\\frac{1}{3}", "1/2"),

    ("99999999999999999999", "100000000000000000000"), ("0.1000000001", "0.1"), ("(" * 400, "1"),
    ("7" * 400, "70"),
    ("-0.5", "0.5"), ("70 70".replace(" ", ""), "70"),
    ("odd", "even"), ("yx", "xyz"),
]  # fmt: skip
# (answer, truth, right): algebra decides
ALGEBRA = [
    ("\\left(1,2\\right)", "(1,2)", True), ("1,23", "123", False), ("12,34", "1234", False), ("1/0", "0", False),
    ("\\frac{1}{0}", "0", False),
    ("\\sqrt{18}", "3\\sqrt{2}", True), ("3\\sqrt2", "\\sqrt{18}", True), ("x+1", "1+x", True),
    ("(x+1)^2", "x^2+2x+1", True),
    ("\\left(3,\\frac{\\pi}{2}\\right)", "(3,\\pi/2)", True), ("(\\pi/2,3)", "(3,\\pi/2)", False),
    ("70^\\circ", "70", True),
    ("50\\%", "50", True), ("2\\pi", "2\\pi r", False), ("\\frac{\\sqrt{3}}{3}", "\\frac{1}{\\sqrt{3}}", True),
    ("e^{i\\pi}", "-1", False),
    ("\\infty", "-\\infty", False), ("[0,1]", "[0,1)", False), ("(0,1)\\cup(2,3)", "(2,3)\\cup(0,1)", True),
    ("x=5", "5", True), ("-2,1", "1,-2", True),
    ("\\{1,2\\}", "\\{2,1\\}", True), ("1,2", "1,3", False), ("\\sin^2 x+\\cos^2 x", "1", True),
    ("2^{10}", "1024", True),
    ("\\log_2 8", "3", True), ("5!", "120", True), ("\\binom{5}{2}", "10", True), ("10^{-3}", "0.001", True),
    ("\\frac{x}{2}", "0.5x", True),
    ("\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1&3\\end{pmatrix}", False),
    ("cat", "70", False),
    ("69 or 70", "70", False), ("__import__('os').system('true')", "0", False),
    ("\\frac", "1", False),
    ("}{", "1", False), ("\\undefined{3}", "4", False), ("3 \\cdot 10^2", "300", True),
    ("\\sqrt[3]{27}", "3", True), ("i^2", "-1", False), ("1<x<2", "(1,2)", False), ("(1,2)", "1<x<2", True),
]  # fmt: skip
BOXES = [
    ("\\boxed{70}", "70"), ("\\boxed{69} no: \\boxed{70}", "70"), ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
    ("\\fbox{70}", "70"),
    ("\\boxed {70}", "70"), ("\\boxed{ 70 }", "70"), ("$\\boxed{70}$.", "70"), ("\\boxed{70} \\boxed{", "70"),
    ("\\boxed{a\\}b}", "a\\}b"),
    ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"), ("\\boxed{}", ""), ("70", None), ("", None), ("boxed{70}", None),
    ("\\boxed70", None),
    ("\\boxed{70", None), ("<think>\\boxed{1}</think>\\boxed{2}", "2"), ("<think>\\boxed{1}</think>2", None),
    ("<think>\\boxed{1} so", None),
    ("a\nb \\boxed{c\nd}", "c\nd"), ("<think>a</think>\n<think>\\boxed{1}</think>\\boxed{2}", "2"),
    ("\\boxed{1\\\\{2}}", "1\\\\{2}"),
    ("\\boxed{70}" + " " * 500, "70"),
]  # fmt: skip
CHOICES = [
    ("B", "B"), ("(B)", "B"), ("B.", "B"), ("B)", "B"), ("\\text{B}", "B"), ("B. 3.4 eV", "B"), ("(B) 3.4 eV", "B"),
    ("B: red", "B"),
    ("$B$", "B"), ("'B'", "B"), ("\\mathbf{B}", "B"), ("b", "B"), ("A and B", None),
    ("B or C", None), ("Because", None), ("AB", None),
    ("3.4 eV", None), ("", None), ("B2", None),
    ("Option B", "B"), ("choice: B", "B"), ("Answer: (B)", "B"), ("**B**", "B"), ("[B]", "B"), ("{B}", "B"),
    ("B. A car", "B"), ("B is an option A", "B"), ("B 3.4 eV", "B"), ("A 3.4 eV", "A"), ("A -2", "A"), ("B red", "B"),
    ("A proton", None), ("a proton", None), ("I guess B", None), ("A + 1", None), ("b is it", None),
    ("A. A proton", "A"),
    ("B C D", None), ("B & C", None), ("B / C", None), ("(B) (C)", None), ("B. C. D.", None), ("B OR C", None),
    ("B  AND C", None), ("B, C and D", None),
    ("A cannot be determined", None), ("I do not know", None), ("I think it is B", None),
]  # fmt: skip


@pytest.fixture(scope="module")
def grader():
    made = Grader(SandboxConfig(), algebra=True)
    made.start()
    yield made
    made.close()


def grade(grader, answer, truth):
    return asyncio.run(grader.grade(answer, truth))


@pytest.mark.parametrize(("answer", "truth"), RIGHT)
def test_a_value_is_right_however_it_is_written(answer, truth):
    found = same(answer, truth)
    assert found.right and same(truth, answer).right
    as_text = normal(answer) == normal(truth) or number(normal(truth)) is None
    assert found.rule == ("text" if as_text else "number")


@pytest.mark.parametrize(("answer", "truth"), WRONG)
def test_another_value_is_wrong_by_text_or_number(answer, truth):
    assert not same(answer, truth).right


@pytest.mark.parametrize(("answer", "truth", "right"), ALGEBRA)
def test_algebra_decides_what_text_and_numbers_cannot(grader, answer, truth, right):
    assert same(answer, truth) is None
    found = grade(grader, answer, truth)
    assert found.right is right and found.rule.startswith("math"), found


@pytest.mark.parametrize(("text", "content"), BOXES)
def test_the_last_closed_box_outside_of_thoughts_counts(text, content):
    assert boxed(text) == content


def test_many_boxes_that_are_not_closed_take_no_time():
    started = time.perf_counter()
    assert boxed("\\boxed{" * 20_000 + "\\boxed{3}") == "3"
    wrapped = "\\text{" * 20_000 + "3" + "}" * 20_000
    assert same(wrapped, "3").rule == "too long" and not same_choice(wrapped, "B").right and normal(wrapped) == wrapped
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize(("answer", "letter"), CHOICES)
def test_a_choice_is_its_letter_alone(answer, letter):
    found = same_choice(answer, "B")
    assert choice(answer) == letter and found.right is (letter == "B") and found.rule == "letter"


@pytest.mark.parametrize("answer", ["9^{9^{9^9}}", "123456789!", "\\int_0^1 " * 25 + "x"])
def test_an_answer_that_hangs_algebra_is_wrong_in_time(grader, answer):
    found = grade(grader, answer, "2")
    assert not found.right and found.rule.startswith("math")
    assert grade(grader, "\\sqrt{4}", "2").right  # the grader works on


def test_answers_are_graded_alike_off_the_main_thread():
    def in_thread():
        made = Grader(SandboxConfig(), algebra=True)
        made.start()
        with closing(made):
            return [grade(made, answer, "3\\sqrt{2}") for answer in ("\\sqrt{18}", "\\sqrt{19}", "9^{9^{9^9}}")]

    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(in_thread).result()
    assert [(f.right, f.rule.startswith("math")) for f in found] == [(True, True), (False, True), (False, True)], found


def test_without_algebra_only_text_and_numbers_are_right():
    plain = Grader(SandboxConfig(), algebra=False)
    plain.start()
    assert grade(plain, "x+1", "x+1").right and not grade(plain, "1+x", "x+1").right


def test_a_grader_whose_sandbox_is_gone_is_a_failure_and_not_a_wrong_answer():
    made = Grader(SandboxConfig(), algebra=True)
    made.start()
    made.programs.start()._threads.submit(lambda: None).result()
    runner = made.programs.start()._idle.queue[-1]
    runner._process.kill()
    with pytest.raises(SandboxFailure, match="could not be graded"):
        grade(made, "\\sqrt{4}", "2")
    made.close()


@needs_data
@pytest.mark.slow
def test_no_answer_of_math500_is_the_next_ones_unless_they_are_equal(grader):
    rows = [json.loads(line) for line in (DATA / "math500.jsonl").read_text().splitlines()]
    truths = [row["answer"] for row in rows]
    assert len(truths) == 500 and all(grade(grader, truth, truth).right for truth in truths)

    async def of_all(pairs):
        return await asyncio.gather(*(grader.grade(a, b) for a, b in pairs))

    pairs = list(zip(truths, truths[1:] + truths[:1], strict=True))
    taken = [pair for pair, found in zip(pairs, asyncio.run(of_all(pairs)), strict=True) if found.right]
    assert all(a.removeprefix("x=") == b.removeprefix("x=") for a, b in taken), taken
