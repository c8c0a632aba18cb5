"""The prompts of the coding domain, and the parsers of their answers. Programs and tests come in fenced blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlanything.domains.answers import last_object
from rlanything.domains.base import ParsedAction
from rlanything.domains.coding.problems import Check
from rlanything.domains.parts import conversation
from rlanything.types import Message

MAX_GENERATED_CHARS = 100_000  # of a test or a problem that a model writes
MIN_TESTS = 4  # of a problem that a model writes
PYTHON = ("python", "python3", "py")
# Fences in pairs, as (info string, block). The first begins a line, unless it says that Python follows.
_BLOCK = re.compile(r"(?:^[ \t]*|(?=```py))```([^\n`]*)\n(.*?)```", re.DOTALL | re.MULTILINE)
_BODY = r"((?:(?!```).)*)```"  # up to the next fence
_TEST = re.compile(rf"```input[ \t]*\n{_BODY}(?:(?!```input).)*?```output[ \t]*\n{_BODY}", re.DOTALL)

POLICY_SYSTEM = (
    "You solve programming problems. Think first, then write one complete Python 3 program that reads from standard "
    "input and writes to standard output, in one block fenced by ```python and ```. It is run as it stands, on tests "
    "that you do not see."
)
TEST_SYSTEM = (
    "You write a unit test for a programming problem: an input that a correct program answers with exactly your "
    "output, and that many wrong programs fail. Think first: choose a case that is easily overlooked, small enough "
    "that you can work out the output by hand, and work it out. Then give the input in a block fenced by ```input and "
    "```, and the output in a block fenced by ```output and ```."
)
REWRITE_SYSTEM = (
    "You change programming problems so that they become easier or harder for those who solve them now. Write one "
    "new problem of the same kind, complete by itself, that a short program reading standard input can solve, with at "
    f"least {MIN_TESTS} tests whose outputs you have worked out. Think first, then answer with one JSON object: "
    '{"question": "...", "tests": [{"input": "...", "output": "..."}, ...]}.'
)


def statement(payload: Mapping[str, Any]) -> str:
    """The question and its examples: the problem as policy, reward model and rewriter read it."""
    text = str(payload["question"])
    for given, wanted in zip(payload.get("example_input", ()), payload.get("example_output", ()), strict=True):
        text += f"\n\nExample input:\n{given.strip()}\nExample output:\n{wanted.strip()}"
    return text


def parse_program(text: str) -> ParsedAction:
    """The last fenced block in Python; if no block names Python, the last one that names no language."""
    blocks = [(info.strip().lower().partition(" ")[0], block) for info, block in _BLOCK.findall(text)]
    programs = [block for info, block in blocks if info in PYTHON] or [block for info, block in blocks if not info]
    if not programs:
        return ParsedAction(None, "no block fenced by ```python and ```")
    return ParsedAction(programs[-1]) if programs[-1].strip() else ParsedAction(None, "an empty block")


def program_response(thought: str, program: str) -> str:
    """A response that `parse_program` reads."""
    return f"{thought}\n```python\n{program.rstrip()}\n```".lstrip()


def test_messages(payload: Mapping[str, Any], style: str) -> list[Message]:
    """The prompt for one unit test."""
    return conversation(TEST_SYSTEM, f"{statement(payload)}\n\nWrite one test.", style)


def parse_test(text: str) -> tuple[Check | None, str]:
    """(the last pair of an input and an output block, "") or (None, why there is none)."""
    found = _TEST.findall(text)
    if not found:
        return None, "no blocks fenced by ```input and ```output"
    given, wanted = found[-1]
    if not wanted.strip():
        return None, "an empty output"
    if len(given) + len(wanted) > MAX_GENERATED_CHARS:
        return None, f"a test of {len(given) + len(wanted)} characters, more than {MAX_GENERATED_CHARS}"
    return Check(given, wanted), ""


def test_response(check: Check, steps: str = "") -> str:
    """A response that `parse_test` reads; `steps` lead from the input to the output."""
    between = f"{steps}\n" if steps else ""
    return f"```input\n{check.input.rstrip()}\n```\n{between}```output\n{check.output.rstrip()}\n```"


def critic(num: int, own: Sequence[int], written: Sequence[tuple[int, bool]], failures: Mapping[str, int]) -> str:
    """Say how many of `num` programs passed each test, and how often each other verdict occurred.

    `own` counts programs for each of the problem's tests. `written` does so for tests of the reward model, and says if
    every correct program passed.
    """
    lines = [f"Of {num} programs these passed its tests: {', '.join(map(str, own)) or 'none'}."]
    if written:
        counts = ", ".join(f"{n}{'' if right else ' (doubtful)'}" for n, right in written)
        lines.append(f"Further tests were passed by: {counts}.")
    if failures:
        counts = ", ".join(f"{verdict.replace('_', ' ')} {n}" for verdict, n in sorted(failures.items()))
        lines.append(f"Failures: {counts}.")
    return "\n".join(lines)


def parse_problem(text: str) -> dict[str, Any] | None:
    """The last JSON object with a question, as a row of a data file; None if there is none."""
    found = last_object(text, ["question"])
    if found is None:
        return None
    tests = found.get("tests")
    pairs = [test if isinstance(test, dict) else {} for test in tests] if isinstance(tests, list) else []
    return {
        "question": found["question"],
        "test_input": [test.get("input") for test in pairs],
        "test_output": [test.get("output") for test in pairs],
    }
