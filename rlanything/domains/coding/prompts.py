"""The prompts of the coding domain, and the parsers of their answers. Programs and tests come in fenced blocks."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlanything.domains.answers import last_object
from rlanything.domains.base import ParsedAction
from rlanything.domains.coding.fields import BadProblem, calls, texts
from rlanything.domains.coding.problems import Check
from rlanything.domains.markdown import GIVEN, PYTHON, SESSION, WANTED, fenced_blocks
from rlanything.domains.parts import conversation
from rlanything.types import Message

MAX_GENERATED_CHARS = 100_000  # of a test or a problem that a model writes
MIN_TESTS = 4  # of a problem that a model writes
PLAIN = ("", "text", "txt", "plaintext", "json")  # what a block that holds data is called
_WRITES = re.compile(r"\b(?:print|write|writelines|stdout|open|exec|eval|def|class)\b")
_NAMED = re.compile(r"\b(input|output)\b", re.IGNORECASE)

POLICY_SYSTEM = (
    "You solve programming problems. Think first, then write one complete Python 3 program that reads from standard "
    "input and writes to standard output, in one block fenced by ```python and ```. It is run as it stands, on tests "
    "that you do not see."
)
POLICY_FUNCTION_SYSTEM = (
    "You solve programming problems. Think first, then write Python 3 code that defines {function}, in one block "
    "fenced by ```python and ```. It is called as it stands, on tests that you do not see, and must return its result."
)
TEST_SYSTEM = (
    "You write a unit test for a programming problem: an input that a correct program answers with exactly your "
    "output, and that many wrong programs fail. Think first: choose a case that is easily overlooked, small enough "
    "that you can work out the output by hand, and work it out. Then give the input in a block fenced by ```input and "
    "```, and the output in a block fenced by ```output and ```."
)
TEST_FUNCTION_FORM = (
    " The input holds the arguments of {function} as JSON, one a line, and the output its result as JSON."
)
REWRITE_SYSTEM = (
    "You change programming problems so that they become easier or harder for those who solve them now. Write one "
    "new problem of the same kind, complete by itself, that a short program reading standard input can solve, with at "
    f"least {MIN_TESTS} tests whose outputs you have worked out. Think first, then answer with one JSON object: "
    '{"question": "...", "tests": [{"input": "...", "output": "..."}, ...]}.'
)


def policy_system(payload: Mapping[str, Any], packages: Sequence[str]) -> str:
    """What the policy is told before a problem. `packages` are those that programs may import."""
    function = payload.get("function")
    system = POLICY_FUNCTION_SYSTEM.format(function=function) if function else POLICY_SYSTEM
    if packages:
        system += f" Besides the standard library it may import {', '.join(packages)}."
    return system


def statement(payload: Mapping[str, Any]) -> str:
    """The question, its examples and its starter code: the problem as policy, reward model and rewriter read it."""
    text = str(payload["question"])
    for given, wanted in zip(payload.get("example_input", ()), payload.get("example_output", ()), strict=True):
        text += f"\n\nExample input:\n{given.strip()}\nExample output:\n{wanted.strip()}"
    if code := payload.get("starter_code"):
        text += f"\n\nBegin with:\n```python\n{code.rstrip()}\n```"
    return text


def parse_program(text: str) -> ParsedAction:
    """The program of an answer: the last block in Python, or if no block is, the last one that names no language.

    A block that can write nothing and defines nothing, such as an example of the output, is taken only if there is no
    other; so is a console session, which shows how a program is used.
    """
    blocks = fenced_blocks(text)
    programs = [b.text for b in blocks if b.language in PYTHON and b.language != SESSION]
    programs = programs or [b.text for b in blocks if b.language in ("", SESSION)]
    if not programs:
        return ParsedAction(None, "no block fenced by ```python and ```")
    program = next((p for p in reversed(programs) if _WRITES.search(p)), programs[-1])
    return ParsedAction(program, kind="program") if program.strip() else ParsedAction(None, "an empty block")


def program_response(thought: str, program: str) -> str:
    """A response that `parse_program` reads."""
    return f"{thought}\n```python\n{program.rstrip()}\n```".lstrip()


def test_messages(payload: Mapping[str, Any], style: str) -> list[Message]:
    """The prompt for one unit test."""
    function = payload.get("function")
    system = TEST_SYSTEM + (TEST_FUNCTION_FORM.format(function=function) if function else "")
    return conversation(system, f"{statement(payload)}\n\nWrite one test.", style)


def parse_test(text: str, is_call: bool = False) -> tuple[Check | None, str]:
    """(the last block of an input with the next one of an output, "") or (None, why there is none).

    A block's name is what its first line says, or if that says nothing the line before it ("Output:"). If the test
    `is_call` of a function, both blocks hold JSON.
    """
    given, found = None, ("", "")
    for block in fenced_blocks(text):
        named = _NAMED.findall(block.lead)
        name = named[-1].lower() if block.language in PLAIN and named else block.language
        if name in GIVEN:
            given = block.text
        elif name in WANTED and given is not None:
            found = (given, block.text)
            given = None
    if not found[1]:
        return None, "no blocks fenced by ```input and ```output"
    if not found[1].strip():
        return None, "an empty output"
    if (size := len(found[0]) + len(found[1])) > MAX_GENERATED_CHARS:
        return None, f"a test of {size} characters, more than {MAX_GENERATED_CHARS}"
    try:
        return Check(*(calls if is_call else texts)("test", *found)), ""
    except BadProblem as problem:
        return None, str(problem)


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
