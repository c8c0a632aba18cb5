"""Problems with tests: the rows of data files, as `data/README.md` describes them, become payloads of tasks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlanything.domains.coding import fields
from rlanything.domains.coding.fields import BadProblem, Pairs
from rlanything.domains.rows import check_characters


@dataclass(frozen=True)
class Check:
    """One test of a problem."""

    input: str
    """What the program reads from standard input; of a function its arguments as JSON, one a line."""
    output: str
    """What it must write to standard output; of a function its result as JSON."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How programs for a problem are tried. By default they read standard input, and their output is compared."""

    function: str = ""
    """The function or `Class.method` that is called, "" for a program that reads standard input."""
    checker: str = ""
    """A program that defines `check(input, expected, found)`, "" if outputs are compared."""


def rules_of(payload: Mapping[str, Any]) -> Rules:
    """The rules of a payload."""
    return Rules(function=payload.get("function", ""), checker=payload.get("checker", ""))


def check_row(row: object) -> dict[str, Any]:
    """Check a row and return it as a task's payload.

    The payload has `question`, `time_limit_s` and `tests` ([input, output] pairs), and if the row has them `function`,
    `checker`, `starter_code`, `example_input`, `example_output`, `kind`, `solution`, `chain` and `task_id`. Raises
    BadProblem.
    """
    if not isinstance(row, Mapping):
        raise BadProblem(f"expected an object, found {type(row).__name__}")
    row = {name: value for name, value in row.items() if not fields.is_missing(value)}
    function = fields.read_function(row)
    read = fields.calls if function else fields.texts
    payload: dict[str, Any] = {"question": fields.read_question(row), "time_limit_s": fields.read_time_limit_s(row)}
    checker = fields.read_checker(row)
    payload["tests"] = _without_repeats(fields.read_pairs(row, "test", read), bool(checker))
    optional = {
        "function": function,
        "checker": checker,
        "starter_code": fields.read_text(row, "starter_code"),
        "kind": fields.read_kind(row),
        "solution": fields.read_solution(row),
        "chain": row.get("chain"),
        "task_id": fields.read_task_id(row),
    }
    if row.get("example_input") or row.get("example_output"):
        examples = fields.read_pairs(row, "example", fields.texts)
        optional |= {"example_input": [a for a, _ in examples], "example_output": [b for _, b in examples]}
    payload |= {name: value for name, value in optional.items() if value}
    check_characters(payload)
    return payload


def _without_repeats(tests: Pairs, has_checker: bool) -> list[list[str]]:
    """The different tests. Raises BadProblem if an input has several outputs that differ in more than white space."""
    kept: dict[str, tuple[str, str]] = {}
    for given, wanted in tests:
        first = kept.setdefault(given.rstrip("\n"), (given, wanted))
        if first[1].split() != wanted.split() and not has_checker:
            raise BadProblem(f"test_input: {given!r:.80} occurs twice with different outputs")
    return [list(test) for test in kept.values()]
