"""Problems as data: a statement, and tests that a program reads from standard input and answers on standard output.

`data/README.md` describes the files: `<split>.json`, a list of rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlanything.errors import TaskError

TIME_LIMIT_S = 4.0  # of a problem that names none
MAX_TEST_CHARS = 32 << 20  # of one test's input or output: more is a mistake in the data
OPTIONAL = ("example_input", "example_output", "kind", "solution", "chain", "task_id")


class BadProblem(ValueError):
    """A row that is no problem: the message says what is wrong with it."""


@dataclass(frozen=True)
class Check:
    """One test: what the program reads, and what it must write."""

    input: str
    output: str


def check_row(row: object) -> dict[str, Any]:
    """A row as a task's payload: `question`, `time_limit_s`, `tests` ([input, output] pairs) and, where they are
    there, the fields of OPTIONAL. Raises BadProblem."""
    if not isinstance(row, Mapping):
        raise BadProblem(f"expected an object, found {type(row).__name__}")
    question = row.get("question")
    if not (isinstance(question, str) and question.strip()):
        raise BadProblem("question: expected a text that is not empty")
    if row.get("test_method", "stdio") != "stdio":
        raise BadProblem(f"test_method: found {row['test_method']!r}, expected 'stdio'")
    limit = row.get("test_time_limit", TIME_LIMIT_S)
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not (math.isfinite(limit) and limit > 0):
        raise BadProblem(f"test_time_limit: found {limit!r}, expected seconds above 0")
    inputs, outputs = _texts(row, "test_input"), _texts(row, "test_output")
    if len(inputs) != len(outputs):
        raise BadProblem(f"test_input and test_output: {len(inputs)} and {len(outputs)} texts, expected as many")
    tests = list(dict.fromkeys(zip(inputs, outputs, strict=True)))
    if len({given for given, _ in tests}) != len(tests):
        raise BadProblem("test_input: an input occurs twice with different outputs")
    shown = [_texts(row, name) if row.get(name) else [] for name in ("example_input", "example_output")]
    if len(shown[0]) != len(shown[1]):
        raise BadProblem(f"example_input and example_output: {len(shown[0])} and {len(shown[1])} texts")
    for text in (question, *inputs, *outputs, *(str(row[name]) for name in OPTIONAL if row.get(name))):
        if _is_broken(text):
            raise BadProblem(f"a text with half a character (a lone surrogate): {text[:80]!r}")
    payload = {"question": question.strip(), "time_limit_s": float(limit), "tests": [list(test) for test in tests]}
    return payload | {name: row[name] for name in OPTIONAL if row.get(name)}


def _texts(row: Mapping[str, Any], name: str) -> list[str]:
    texts = row.get(name)
    if not (isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)):
        raise BadProblem(f"{name}: expected a list of texts that is not empty")
    longest = max(map(len, texts))
    if longest > MAX_TEST_CHARS:
        raise BadProblem(f"{name}: a test of {longest} characters, expected at most {MAX_TEST_CHARS}")
    return texts


def _is_broken(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # no file, tokenizer or pipe takes it
        return True
    return False


def read_problems(path: Path, skip_bad: bool) -> tuple[list[tuple[int, dict[str, Any]]], list[str]]:
    """(index, payload) of every row of a file, and what was wrong with those that were skipped.

    Raises TaskError naming the file, and the row where one is bad and `skip_bad` is not set.
    """
    if not path.is_file():
        raise TaskError(f"{path}: there is no such file; fetch one with data/download.py, or see data/README.md")
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise TaskError(f"{path}: not a JSON file ({error}); fetch it anew") from error
    if not isinstance(rows, list):
        raise TaskError(f"{path}: expected a list of problems, found {type(rows).__name__}; see data/README.md")
    found, skipped, names = [], [], set()
    for index, row in enumerate(rows):
        try:
            payload = check_row(row)
            name = str(payload.get("task_id", f"row {index}"))
            if name in names:
                raise BadProblem(f"task_id: {name!r} is an earlier row's too")
            names.add(name)
            found.append((index, payload))
        except BadProblem as problem:
            if not skip_bad:
                raise TaskError(
                    f"{path}, row {index}: {problem}; mend it, or set dataset.options.skip_bad=true to leave such rows "
                    "out"
                ) from problem
            skipped.append(f"row {index}: {problem}")
    if not found:
        raise TaskError(f"{path}: holds no usable problem ({len(rows)} rows, {len(skipped)} of them bad)")
    return found, skipped
