"""Tests of programs in published sets of reasoning problems, as fields of `coding.problems`. Pure."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from rlanything.domains.rows import BadProblem

FIELDS = ("ground_truth", "reward_model", "answer", "solution")  # that may hold tests


def tests_of(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row with its tests as `test_input`, `test_output` and perhaps `fn_name`; None if it holds none.

    They may be the row's own, or an object with `inputs`, `outputs` and perhaps `fn_name`, or with `test_code` and
    `entry_point`, as such or as JSON in a text. Raises BadProblem for `test_code` that is no list of comparisons.
    Source: the columns of Open-AgentRL-30K and LiveCodeBench v6.
    """
    if "test_input" in row:
        return dict(row)
    for name in FIELDS:
        found = _object(row.get(name))
        if isinstance(found, Mapping) and "ground_truth" in found:
            found = _object(found["ground_truth"])
        if not isinstance(found, Mapping):
            continue
        rest = {key: value for key, value in row.items() if key != name}
        if "inputs" in found and "outputs" in found:
            function = found.get("fn_name")
            made = {"test_input": _list(found["inputs"]), "test_output": _list(found["outputs"])}
            return rest | made | ({"fn_name": function} if function else {})
        if "test_code" in found and "entry_point" in found:
            return rest | _of_asserts(str(found["test_code"]), str(found["entry_point"]))
    return None


def holds_objects(text: str) -> bool:
    """True if a text is JSON of an object or of a list of objects: data, and no answer."""
    found = _object(_list(text))
    return isinstance(found, dict) or (isinstance(found, list) and any(isinstance(item, dict) for item in found))


def _of_asserts(code: str, entry_point: str) -> dict[str, Any]:
    """The tests in a function of asserts such as `assert candidate(x = [1, 2]) == 3`.

    They become calls with a result. Code that ran beside the program could be fooled by it, for instance by a result
    that equals everything.
    """
    try:
        asserted = [node.test for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Assert)]
        pairs = [_call(test) for test in asserted]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise BadProblem(f"test_code: expected asserts that compare calls with plain values ({error})") from error
    return {
        "fn_name": entry_point.replace("()", ""),
        "test_input": [given for given, _ in pairs],
        "test_output": [wanted for _, wanted in pairs],
    }


def _call(test: ast.expr) -> tuple[list[Any], Any]:
    """The arguments and the result of `call(...) == value`. Raises ValueError or TypeError if it is something else."""
    if not (isinstance(test, ast.Compare) and isinstance(test.left, ast.Call) and len(test.ops) == 1):
        raise ValueError(f"found {ast.unparse(test):.60}")
    if not (isinstance(test.ops[0], ast.Eq) and isinstance(test.left.func, ast.Name)):
        raise ValueError(f"found {ast.unparse(test):.60}")
    given = [*test.left.args, *(keyword.value for keyword in test.left.keywords)]
    values = [ast.literal_eval(node) for node in (*given, test.comparators[0])]
    json.dumps(values)
    return values[:-1], values[-1]


def _object(value: object) -> object:
    """Read a text that may be an object in JSON; anything else stays as it is."""
    return _read(value, "{", dict)


def _list(value: object) -> object:
    """Read a text that may be a list in JSON; anything else stays as it is."""
    return _read(value, "[", list)


def _read(value: object, opening: str, kind: type) -> object:
    if not isinstance(value, str) or not value.lstrip().startswith(opening):
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found if isinstance(found, kind) else value
