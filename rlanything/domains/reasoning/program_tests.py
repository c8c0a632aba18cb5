"""Tests of programs in published sets of reasoning problems, as fields of `coding.problems`. Pure."""

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
    function = entry_point.replace("()", "")
    try:
        module = ast.parse(code)
        parameters = [f.args.args[0].arg for f in module.body if isinstance(f, ast.FunctionDef) and f.args.args]
        names = {"candidate", function.rpartition(".")[2], *parameters}
        calls = [_call(test, names) for test in _asserted(module)]
        order = next((list(named) for _, named, _ in calls if named), [])  # as a rule that of the function's parameters
        if any(named and set(named) != set(order) for _, named, _ in calls):
            raise ValueError("keywords that differ from call to call")
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise BadProblem(f"test_code: expected asserts that compare calls with plain values ({error})") from error
    return {
        "fn_name": function,
        "test_input": [given + [named[name] for name in order if name in named] for given, named, _ in calls],
        "test_output": [wanted for *_, wanted in calls],
    }


def _asserted(module: ast.Module) -> list[ast.expr]:
    """Return what module and functions assert. Raises ValueError for an assert in a loop, a branch or a class."""
    bodies = [module.body, *(node.body for node in module.body if isinstance(node, ast.FunctionDef))]
    found = [node.test for body in bodies for node in body if isinstance(node, ast.Assert)]
    if len(found) != sum(isinstance(node, ast.Assert) for node in ast.walk(module)):
        raise ValueError("found one within another statement")
    return found


def _call(test: ast.expr, names: set[str]) -> tuple[list[Any], dict[str, Any], Any]:
    """Arguments, keyword arguments and result of `call(...) == value`, where the call is of one of `names`.

    Raises ValueError or TypeError if it is something else, or holds a dictionary that JSON would change. Tuples become
    lists.
    """
    if not (isinstance(test, ast.Compare) and isinstance(test.left, ast.Call) and len(test.ops) == 1):
        raise ValueError(f"found {ast.unparse(test):.60}")
    function = test.left.func
    if not (isinstance(test.ops[0], ast.Eq) and isinstance(function, ast.Name) and function.id in names):
        raise ValueError(f"found {ast.unparse(test):.60}")
    given = [ast.literal_eval(node) for node in test.left.args]
    keywords = {keyword.arg for keyword in test.left.keywords}
    if None in keywords or len(keywords) < len(test.left.keywords):
        raise ValueError(f"found {ast.unparse(test):.60}")
    named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in test.left.keywords}
    wanted = ast.literal_eval(test.comparators[0])
    if not _has_text_keys([given, list(named.values()), wanted]):
        raise ValueError(f"found {ast.unparse(test):.60}: keys that are no texts")
    json.dumps([given, named, wanted])
    return given, named, wanted


def _has_text_keys(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_has_text_keys, value.values()))
    return not isinstance(value, list | tuple) or all(map(_has_text_keys, value))


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
