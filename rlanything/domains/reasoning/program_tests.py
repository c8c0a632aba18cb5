"""Tests of programs as published sets of reasoning problems hold them, as fields of `coding.problems`. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rlanything.domains.rows import BadProblem

FIELDS = ("ground_truth", "reward_model", "answer", "solution")  # that may hold tests


def tests_of(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fields of the row's tests; None if its answer is no program. Raises BadProblem.

    They may be the row's own (`test_input`), or an object with `inputs`, `outputs` and perhaps `fn_name`, or with
    `test_code` and `entry_point`, as such or as JSON in a text. Source: the columns of Open-AgentRL-30K and
    LiveCodeBench v6.
    """
    if "test_input" in row or "asserts" in row:
        return {}
    for name in FIELDS:
        found = _object(row.get(name))
        if isinstance(found, Mapping) and "ground_truth" in found:
            found = _object(found["ground_truth"])
        if isinstance(found, list) and any(isinstance(item, Mapping) for item in found):
            raise BadProblem(f"{name}: found a list of objects, expected an answer, or tests as inputs and outputs")
        if not isinstance(found, Mapping):
            continue
        if "inputs" in found and "outputs" in found:
            function = found.get("fn_name")
            made = {"test_input": _list(found["inputs"]), "test_output": _list(found["outputs"])}
            return made | ({"fn_name": function} if function else {})
        if "test_code" in found and "entry_point" in found:
            asserts = f"{found['test_code']}\ncheck({found['entry_point']})\n"
            return {"asserts": asserts, "prelude": found.get("import_prefix") or ""}
        keys = ", ".join(map(repr, list(found)[:5]))
        raise BadProblem(
            f"{name}: found an object with {keys}, expected tests: inputs and outputs, or test_code and entry_point"
        )
    return None


def _object(value: object) -> object:
    """What a text holds as JSON, if it may be an object or a list of objects; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _list(value: object) -> object:
    """What a text holds as JSON, if it is a list; anything else as it is."""
    if isinstance(value, str):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return found if isinstance(found, list) else value
    return value
