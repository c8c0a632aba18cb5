"""Reads problems: statements with tests of standard input and output. `data/README.md` describes the files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from rlanything.errors import TaskError

TIME_LIMIT_S = 4.0  # time limit of a problem that names none [s]
MAX_TEST_CHARS = 32 << 20  # characters of one test's input or output; a longer one is a mistake in the data
OPTIONAL = ("example_input", "example_output", "kind", "solution", "chain", "task_id")


class BadProblem(ValueError):
    """A row is no problem. The message says why."""


@dataclass(frozen=True)
class Check:
    """One test of a problem."""

    input: str
    """What the program reads from standard input."""
    output: str
    """What it must write to standard output."""


def check_row(row: object) -> dict[str, Any]:
    """Check a row and return it as a task's payload.

    The payload has `question`, `time_limit_s`, `tests` ([input, output] pairs) and the fields of OPTIONAL that the row
    has. Raises BadProblem.
    """
    if not isinstance(row, Mapping):
        raise BadProblem(f"expected an object, found {type(row).__name__}")
    question = row.get("question")
    if not (isinstance(question, str) and question.strip()):
        raise BadProblem(f"question: found {question!r:.80}, expected a text that is not empty")
    if row.get("test_method", "stdio") != "stdio":
        raise BadProblem(f"test_method: found {row['test_method']!r}, expected 'stdio'")
    limit = row.get("test_time_limit", TIME_LIMIT_S)
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not (math.isfinite(limit) and limit > 0):
        raise BadProblem(f"test_time_limit: found {limit!r}, expected a number of seconds above 0")
    tests = list(dict.fromkeys(_pairs(row, "test")))
    if len({given for given, _ in tests}) != len(tests):
        raise BadProblem("test_input: an input occurs twice with different outputs")
    if row.get("example_input") or row.get("example_output"):
        _pairs(row, "example")
    optional = {name: row[name] for name in OPTIONAL if row.get(name)}
    for text in (question, *chain.from_iterable(tests), *map(str, optional.values())):
        try:
            text.encode()
        except UnicodeEncodeError as error:  # no file, tokenizer or pipe takes such a text
            raise BadProblem(f"half a character (a lone surrogate) in the text {text[:80]!r}") from error
    payload = {"question": question.strip(), "time_limit_s": float(limit), "tests": [list(test) for test in tests]}
    return payload | optional


def _pairs(row: Mapping[str, Any], name: str) -> list[tuple[str, str]]:
    """The (input, output) pairs of a row's `<name>_input` and `<name>_output`. Raises BadProblem."""
    inputs, outputs = _texts(row, f"{name}_input"), _texts(row, f"{name}_output")
    if len(inputs) != len(outputs):
        raise BadProblem(
            f"{name}_input and {name}_output: found {len(inputs)} and {len(outputs)} texts, expected as many"
        )
    return list(zip(inputs, outputs, strict=True))


def _texts(row: Mapping[str, Any], name: str) -> list[str]:
    texts = row.get(name)
    if not (isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)):
        raise BadProblem(f"{name}: expected a list of texts that is not empty")
    longest = max(map(len, texts))
    if longest > MAX_TEST_CHARS:
        raise BadProblem(f"{name}: a test of {longest} characters, expected at most {MAX_TEST_CHARS}")
    return texts


def read_problems(path: Path, skip_bad: bool) -> tuple[list[tuple[int, dict[str, Any]]], list[str]]:
    """Read a file of problems.

    Returns (index, payload) of every good row, and the faults of the bad ones. Raises TaskError if the file has no good
    row, or if it has a bad one and `skip_bad` is False.
    """
    if not path.is_file():
        raise TaskError(f"{path}: no such file; fetch a data set with data/download.py (data/README.md)")
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise TaskError(f"{path}: not a JSON file ({error}); fetch it again") from error
    if not isinstance(rows, list):
        raise TaskError(f"{path}: found {type(rows).__name__}, expected a list of problems (data/README.md)")
    problems, bad, names = [], [], set()
    for index, row in enumerate(rows):
        try:
            payload = check_row(row)
            name = str(payload.get("task_id", f"row {index}"))
            if name in names:
                raise BadProblem(f"task_id: {name!r} is the name of an earlier row too")
            names.add(name)
            problems.append((index, payload))
        except BadProblem as problem:
            if not skip_bad:
                raise TaskError(
                    f"{path}, row {index}: {problem}; mend it, or set dataset.options.skip_bad=true to leave such rows "
                    "out"
                ) from problem
            bad.append(f"row {index}: {problem}")
    if not problems:
        raise TaskError(f"{path}: holds no usable problem ({len(rows)} rows, {len(bad)} of them bad)")
    return problems, bad
