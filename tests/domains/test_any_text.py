"""A model may write anything: no text that it writes breaks a reader of its answers."""

from __future__ import annotations

import contextlib
import random

import pytest

from rlanything.domains.answers import boxed, choose, last_object, parse_score, whole
from rlanything.domains.base import Observation, ParsedAction
from rlanything.domains.coding.prompts import parse_problem, parse_program, parse_test
from rlanything.domains.markdown import fenced_blocks
from rlanything.domains.osworld.actions import InvalidAction, read_response

PIECES = [
    "```", "~~~", " ```", "python", "{.py}", ">>> ", "print(", "'''", "x = 1", "def f(", "<div>", "# ", "---",
    "- ", "1. ", "> ", "\t", "  ", "\n", "\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\x00",
    "\ufeff", "\\boxed{", "\\text{", "}", "{", "[", "]", "$", "-1", "1.", "٣", "²", "9" * 5000, "\ud800", "é", "😀",
    '{"question": ', '"a"', ": ", ", ", "null", "NaN", "1e999", "**Input:**", "Test Input:", "input", "output",
    "<tool_call>", "</tool_call>", '{"name": "computer_use", "arguments": ', '{"action": "type", "text": ', '"\\ud83d"',
    "<think>", "</think>", "(" * 300, "[" * 2000,
]  # fmt: skip
READERS = {
    "fenced_blocks": fenced_blocks, "boxed": boxed, "parse_score": parse_score, "parse_program": parse_program,
    "parse_test": parse_test, "parse_call": lambda text: parse_test(text, is_call=True), "parse_problem": parse_problem,
    "choose": lambda text: choose(text, ["look", "go to desk 1"], numbered=True),
    "last_object": lambda text: last_object(text, ["question"]),
    "computer_use": lambda text: _computer_use(text),
}  # fmt: skip


def _computer_use(text: str) -> None:
    with contextlib.suppress(InvalidAction):
        read_response(text).to_json().encode()


@pytest.mark.parametrize("name", READERS)
def test_no_text_breaks_a_reader(name: str) -> None:
    draw = random.Random(name)
    for _ in range(3000):
        text = "".join(draw.choices(PIECES, k=draw.randint(0, 30)))
        try:
            READERS[name](text)
        except Exception as error:
            raise AssertionError(f"{name} cannot read {text!r}") from error


def test_no_half_of_a_character_leaves_a_domain() -> None:
    half = "a \ud83d b"
    seen = Observation(half, actions=("look", half), reason=half, results=(half,), state=half)
    for text in (seen.text, seen.actions[1], seen.reason, seen.results[0], seen.state):
        assert text == "a \ufffd b"
    asked = ParsedAction(half, error=half)
    assert (asked.action, asked.error) == ("a \ufffd b", "a \ufffd b") and ParsedAction(None, "no").action is None
    assert whole("\ud83d\ude00 é") == "😀 é", "two halves are one character"
