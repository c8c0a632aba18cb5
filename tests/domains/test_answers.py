"""What instruct models make of the forms that prompts ask for is read as they mean it."""

from __future__ import annotations

import time

import pytest

from rlanything.domains.answers import boxed, canonical, choose, parse_score

COMMANDS = ("look", "go to bed 1", "take mug 1 from desk 1", "go to desk 1")


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        (r"\boxed{look}", ["look"]),
        (r"$\boxed{ go  to bed 1 }$", ["go to bed 1"]),
        (r"\boxed{\text{4}}", ["4"]),
        (r"\boxed{\textbf{go to \mathrm{desk}~1}}", ["go to desk 1"]),
        (r"\boxed {go\ to\ bed\ 1}", ["go to bed 1"]),
        (r"\fbox{1}", ["1"]),
        (r"\boxed{\textcolor{red}{look}}", ["look"]),
        (r"\boxed{\boxed{1}}", ["1"]),
        (r"\boxed{a {b} c} and \boxed{d}", ["a {b} c", "d"]),
        (r"\boxed{a \} b}", [r"a \} b"]),
        (r"\boxed{x\_1}", ["x_1"]),
        (r"first \boxed{1}, cut \boxed{2", ["1"]),
        ("boxed{1} {2} nothing", []),
        ("", []),
    ],
)
def test_boxes_are_read_with_braces_and_latex_in_them(text: str, contents: list[str]) -> None:
    assert boxed(text) == contents


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (r"good \boxed{1}", 1), (r"\boxed{-1}", -1), (r"\boxed{+1}", 1), (r"\boxed{1.}", 1), (r"\boxed{1.0}", 1),
        (r"\boxed{-1.00}", -1), (r"\boxed{\text{-1}}", -1), ("\\boxed{\N{MINUS SIGN}1}", -1), (r"\boxed{- 1}", -1),
        (r"$\boxed{\mathbf{1}}$", 1), (r"\boxed{**-1**}", -1), (r"\boxed{1 (good)}", 1), (r"\boxed{'1'}", 1),
        (r"It could be \boxed{1} or \boxed{-1}. I say \boxed{1}.", 1), (r"\boxed{1}\boxed{-1}", -1),
        (r"\boxed{0}", None), (r"\boxed{10}", None), (r"\boxed{1.5}", None), (r"\boxed{1/2}", None),
        (r"\boxed{11}", None),
        (r"\boxed{{-1}}", -1), (r"\boxed{\{1\}}", 1), (r"\boxed 1", 1), (r"\boxed{(1)}", 1), (r"\boxed{[-1]}", -1),
        (r"\boxed{\text{Score: }-1}", -1), (r"\boxed{\color{red}{-1}}", -1), (r"\boxed{\textcolor{red}{-1}}", -1),
        (r"\boxed{\bf -1}", -1), (r"\boxed{\underline{-1}}", -1), ("\\boxed{\N{FULLWIDTH DIGIT ONE}}", 1),
        (r"\boxed 1/2", None), (r"\boxed 10", None), (r"\boxed 1.5", None), (r"\boxed{Score: 2}", None),
        (r"\boxed{1 or -1}", None), (r"\boxed{good}", None), (r"\boxed{}", None), ("1", None), (r"\boxed{1", None),
        ("\\boxed{\N{HYPHEN}1}", -1), ("\\boxed{\N{NON-BREAKING HYPHEN}1}", -1), ("\\boxed{\N{EM DASH}1}", -1),
        (r"\boxed{\text{Final score: } 1}", 1), (r"\boxed{The score is -1}", -1), (r"\boxed{My rating = 1}", 1),
        (r"\boxed{\displaystyle -1}", -1), (r"\boxed{\left(-1\right)}", -1), (r"\boxed{good (1)}", 1),
        *((rf"\boxed{{{said}}}", None) for said in (
            "x = 1", "n=-1", "P(1)", "f(-1)=x", "not (1)", "failed tests: 1", "The correct answer is (1)",
            "penalty: -1",
            "no = 1, yes", "Score — 1", "Score - 1", "Score – 1",
        )),
        (r"\boxed{⁻1}", -1), (r"\boxed{⁻¹}", -1), (r"\boxed{Verdict: - 1}", -1),
        (r"\boxed{bad: -1}", -1), (r"\boxed{good (10)}", None), (r"\boxed{good 1}", None), (r"\boxed{0 or (1)}", None),
        (r"\boxed{1} then \boxed{unsure}", None), (r"\boxed{--1}", None), (r"\boxed{0.1}", None),
    ],
)  # fmt: skip
def test_the_last_box_is_the_score(text: str, score: int | None) -> None:
    found, error = parse_score(text)
    assert found == score and bool(error) == (score is None)


@pytest.mark.parametrize(
    ("answer", "command"),
    [
        ("go to desk 1", "go to desk 1"), ("Go To Desk 1.", "go to desk 1"), ("`go to desk 1`", "go to desk 1"),
        ('"Look"', "look"), ("**look**", "look"), ("go to\xa0desk 1", "go to desk 1"), ("look.", "look"),
        ("4", "go to desk 1"), ("4.", "go to desk 1"), ("4. go to desk 1", "go to desk 1"),
        ("4) Go to desk 1", "go to desk 1"),
        ("[4]", "go to desk 1"), ("(4)", "go to desk 1"), ("#4", "go to desk 1"), ("Command 4", "go to desk 1"),
        ("option 2: go to bed 1", "go to bed 1"), ("4: go to desk one", "go to desk 1"), ("3. look", "look"),
        ("5", None), ("0", None), ("-1", None), ("fly", None), ("", None), ("99999999999999", None),
        ("4.5", None), ("go to desk 10", None), ("5. fly", None), ("1 fly", None), ("4 5", None),
        ("1 look", "look"), ("> go to desk 1", "go to desk 1"), ("Command: go to desk 1", "go to desk 1"),
        ("Action = `look`", "look"), ("Command: 4", "go to desk 1"), ("[go to desk 1]", "go to desk 1"),
        ("<look>", "look"), ("go to desk 1 (4)", "go to desk 1"), ("Go to bed 1. [2]", "go to bed 1"),
    ],
)  # fmt: skip
def test_a_numbered_option_is_chosen_by_number_or_words(answer: str, command: str | None) -> None:
    assert choose(answer, COMMANDS, numbered=True) == command


def test_numbers_mean_nothing_where_options_are_not_numbered() -> None:
    assert choose("4", COMMANDS, numbered=False) is None
    assert choose("LOOK!", COMMANDS, numbered=False) == "look"


def test_numbers_may_begin_with_zero() -> None:
    assert [choose(answer, COMMANDS, True, first=0) for answer in ("0", "3)", "4", "-1")] == [
        COMMANDS[0],
        COMMANDS[3],
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("answer", "option"),
    [
        ("2. open door (blue)", "open door (blue)"), ("option 1: open door (red)", "open door (red)"),
        ("9. open door (red)", "open door (red)"), ("Action: open door (red)", "open door (red)"),
        ("[open door (red)]", "open door (red)"), ("2", "open door (red)"), ("(2)", "open door (red)"),
    ],
)  # fmt: skip
def test_brackets_may_belong_to_an_option(answer: str, option: str) -> None:
    assert choose(answer, ("go to bed 1", "open door (red)", "open door (blue)"), numbered=True) == option


def test_numbers_as_options_are_no_numbers_of_options() -> None:
    options = ("0", "1", "2", "3")
    assert [choose(answer, options, True, first=0) for answer in ("1.2", "2.0", "2")] == [None, None, "2"]
    assert [choose(answer, options, False) for answer in ("2(1)", "<2", "<2>")] == [None, None, "2"]


def test_options_keep_their_own_letters() -> None:
    assert choose("open DOOR a", ("Open door A",), numbered=False) == "Open door A"
    assert canonical(" “Open  Door A.” ") == "open door a"


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 50_000,
        "{" * 200_000,
        "\\boxed{" + "\\text{" * 50_000 + "}" * 50_001,
        "\\boxed{" + "1" * 200_000 + "}",
        "\\boxed{" + "a " * 100_000 + "(1}",
        "\\boxed{" + "the " * 100_000 + "}",
        "> " * 100_000 + "[" * 100_000,
    ],
    ids=lambda text: text[-12:],
)
def test_no_answer_takes_long_to_read(text: str) -> None:
    started = time.process_time()
    boxed(text), parse_score(text), choose(text, COMMANDS, numbered=True)
    assert time.process_time() - started < 5  # seconds; quadratic time would be minutes
