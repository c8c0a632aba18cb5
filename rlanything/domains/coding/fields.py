"""Reads the fields of a problem's row. Pure; every function raises BadProblem.

Rows come from many converters: a null means that a field is absent, numbers may be texts, and a list may be JSON in a
text.
"""

import ast
import json
import keyword
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from rlanything.domains.rows import BadProblem, LongNumber

TIME_LIMIT_S = 4.0  # time limit of a problem that names none [s]
MAX_TIME_LIMIT_S = 600.0  # a longer limit is a mistake in the data, such as milliseconds
MAX_TEST_CHARS = 32 << 20  # characters of one test's input or output; a longer one is a mistake in the data
METHODS = {"stdio": False, "stdin": False, "standard_input": False, "function": True, "functional": True}
OTHER_NAMES = ("prompt", "problem", "description", "statement", "question_content", "content")
OTHER_TESTS = (  # columns of tests in other sets
    "input_output", "tests", "test_cases", "unit_tests", "public_tests", "private_tests", "public_test_cases",
    "private_test_cases", "inputs", "input",
)  # fmt: skip
CHECKER = "check"  # the function that a checker defines
_SECONDS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|milliseconds?|s|sec|secs|seconds?)?\s*", re.IGNORECASE)
_FUNCTION = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?")

Pairs = list[tuple[str, str]]
"""(input, output) of each test."""


def is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def read_question(row: Mapping[str, Any]) -> str:
    question = row.get("question")
    if isinstance(question, str) and question.strip():
        return question.strip()
    hint = next((f"; rename the field {name!r}" for name in OTHER_NAMES if isinstance(row.get(name), str)), "")
    raise BadProblem(f"question: found {question!r:.80}, expected a text that is not empty{hint}")


def read_function(row: Mapping[str, Any]) -> str:
    """The function that programs define, "" if they read standard input."""
    name = row.get("fn_name", "")
    method = row.get("test_method", "function" if name else "stdio")
    if not isinstance(method, str) or method.lower() not in METHODS:
        raise BadProblem(f"test_method: found {method!r}, expected 'stdio' or 'function'")
    if not METHODS[method.lower()]:
        return ""
    if not isinstance(name, str) or not _FUNCTION.fullmatch(name) or any(map(keyword.iskeyword, name.split("."))):
        raise BadProblem(f"fn_name: found {name!r}, expected the name of a function, or Class.method")
    return name


def read_time_limit_s(row: Mapping[str, Any]) -> float:
    value = row.get("test_time_limit", TIME_LIMIT_S)
    written = _SECONDS.fullmatch(value) if isinstance(value, str) else None
    if written:
        value = float(written[1]) / (1000 if (written[2] or "s").lower().startswith("m") else 1)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_TIME_LIMIT_S:
        raise BadProblem(
            f"test_time_limit: found {value!r}, expected seconds, above 0 and at most {MAX_TIME_LIMIT_S:g}"
        )
    return float(value)


def read_checker(row: Mapping[str, Any]) -> str:
    checker = read_text(row, "checker")
    try:
        defined = [node.name for node in ast.parse(checker).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadProblem(f"checker: not a Python program ({error})") from error
    if checker and CHECKER not in defined:
        raise BadProblem(f"checker: found no function {CHECKER}(input, expected, found), expected a program with one")
    return checker


def read_text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name, "")
    if not isinstance(value, str):
        raise BadProblem(f"{name}: found {type(value).__name__}, expected a text")
    return value


def read_kind(row: Mapping[str, Any]) -> str:
    value = row.get("kind", "")
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, str | int | float) for part in parts):
        raise BadProblem(f"kind: found {value!r:.80}, expected a text or a list of texts")
    return ", ".join(map(str, parts))


def read_task_id(row: Mapping[str, Any]) -> str:
    value = row.get("task_id", "")
    if isinstance(value, float) and value.is_integer():  # pandas makes floats of integers if one is missing
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadProblem(f"task_id: found {value!r:.80}, expected a text or an integer")
    return str(value)


def read_solution(row: Mapping[str, Any]) -> str:
    """The first solution: a text, a list of texts, or the columns of CodeContests, in which language 3 is Python 3."""
    value = row.get("solution", "")
    if isinstance(value, Mapping):
        languages, texts = value.get("language"), value.get("solution")
        if isinstance(languages, list) and isinstance(texts, list):
            value = [text for language, text in zip(languages, texts, strict=False) if language in (3, "PYTHON3")]
    if isinstance(value, list):
        value = next(iter(value), "")
    if not isinstance(value, str):
        raise BadProblem(f"solution: found {type(value).__name__}, expected a program")
    return value


def read_pairs(row: Mapping[str, Any], name: str, read: Callable[[str, object, object], tuple[str, str]]) -> Pairs:
    """The (input, output) pairs of a row's `<name>_input` and `<name>_output`. Raises BadProblem."""
    inputs, outputs = _items(row, f"{name}_input"), _items(row, f"{name}_output")
    if read is calls:  # all of them may be JSON in one text
        written, results = _lists(row.get(f"{name}_input")), _decoded(row.get(f"{name}_output"))
        if written and isinstance(results, list) and len(results) == len(written):
            inputs, outputs = written, results
    else:
        inputs, outputs = _both_lists(row.get(f"{name}_input"), row.get(f"{name}_output")) or (inputs, outputs)
    if len(inputs) != len(outputs):
        raise BadProblem(
            f"{name}_input and {name}_output: found {len(inputs)} and {len(outputs)} texts, expected as many"
        )
    pairs: Pairs = [read(name, given, wanted) for given, wanted in zip(inputs, outputs, strict=True)]
    longest = max(len(text) for pair in pairs for text in pair)
    if longest > MAX_TEST_CHARS:
        raise BadProblem(f"{name}_input: a test of {longest} characters, expected at most {MAX_TEST_CHARS}")
    return pairs


def _both_lists(given: object, wanted: object) -> tuple[list[Any], list[Any]] | None:
    """The lists that two texts hold, if one is of texts and the other, as long, of numbers; else None."""
    a, b = _decoded(given), _decoded(wanted)
    if not (isinstance(a, list) and isinstance(b, list) and a and len(a) == len(b)):
        return None
    kinds = [{type(item) for item in side} for side in (a, b)]
    return (a, b) if {str} in kinds and all(kind <= {str, int, float} for kind in kinds) else None


def _items(row: Mapping[str, Any], name: str) -> list[Any]:
    value = row.get(name)
    if isinstance(value, str):
        decoded = _decoded(value)
        is_list = isinstance(decoded, list) and decoded and all(isinstance(item, str) for item in decoded)
        value = decoded if is_list else [value]
    if not (isinstance(value, list) and value):
        other = next((other for other in OTHER_TESTS if value is None and row.get(other)), "")
        hint = f"; the tests seem to be in {other!r}: write them as test_input and test_output (data/README.md)"
        raise BadProblem(f"{name}: found {value!r:.80}, expected a list that is not empty{hint if other else ''}")
    return value


def _decoded(value: object) -> Any:
    """The value of a JSON text; None if it is none."""
    try:
        return json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        return None


def _lists(value: object) -> list[Any]:
    """The lists of arguments that a text holds as a list of lists; none if it holds none."""
    decoded = _decoded(value)
    return decoded if isinstance(decoded, list) and all(isinstance(item, list) for item in decoded) else []


def texts(name: str, given: object, wanted: object) -> tuple[str, str]:
    return _plain(f"{name}_input", given), _plain(f"{name}_output", wanted)


def _plain(name: str, item: object) -> str:
    """A text, the text of a number, or lines. Line ends become those that a program on Linux is given."""
    if isinstance(item, list) and all(isinstance(line, str) for line in item):
        item = "\n".join(line.removesuffix("\n") for line in item)
    finite = not isinstance(item, float) or math.isfinite(item)
    if isinstance(item, bool) or not (finite and isinstance(item, str | int | float)):
        raise BadProblem(f"{name}: found {item!r:.80}, expected a list of texts")
    try:
        return str(item).replace("\r\n", "\n")
    except ValueError as error:  # Python writes no int of more than 4,300 digits
        raise BadProblem(f"{name}: a number of more than 4,300 digits; expected it as a text") from error


def calls(name: str, given: object, wanted: object) -> tuple[str, str]:
    """Arguments and result of a call: values of JSON, or texts that hold them, one argument a line."""
    if _holds_long([given, wanted]):
        raise BadProblem(f"{name}: a number of more than 4,300 digits; expected it within a text of JSON")
    if isinstance(given, list):
        return "\n".join(map(json.dumps, given)), json.dumps(wanted)
    if not isinstance(given, str):
        raise BadProblem(
            f"{name}_input: found {given!r:.80}, expected a list of arguments, or one of them a line in JSON"
        )
    try:
        arguments = [_one_line(line) for line in given.split("\n") if line.strip()]
        result = _one_line(wanted) if isinstance(wanted, str) else json.dumps(wanted)
    except (ValueError, RecursionError) as error:
        raise BadProblem(f"{name}: {given!r:.80} and {wanted!r:.80}: expected values in JSON ({error})") from error
    return "\n".join(arguments), result


def _holds_long(value: object) -> bool:
    if isinstance(value, list | Mapping):
        return any(map(_holds_long, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, LongNumber)


def _one_line(text: str) -> str:
    """A JSON value in one line. Integers of any length stay as they are. Raises ValueError, RecursionError."""
    json.loads(text, parse_int=str)  # Python makes no int of more than 4,300 digits
    return text.strip() if "\n" not in text.strip() else json.dumps(json.loads(text))
