"""Messages about a configuration that pydantic refuses: "key: found X, expected Y (from FILE)"."""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rlanything.config.published import PAGE
from rlanything.config.reading import is_section
from rlanything.config.section import Expected, Section

# Keys of earlier versions, and where they went.
MOVED = {
    "dataset.backend": "dataset.options.backend",
    "dataset.float_tolerance": "dataset.options.float_tolerance",
    "dataset.num_test": "dataset.options.num_test",
    "dataset.project": "dataset.options.project",
    "dataset.show_actions": "dataset.options.show_actions",
    "dataset.skip_bad": "dataset.options.skip_bad",
    "reward.advantage": "algorithm.advantage",
    "reward.negative_weight": "algorithm.negative_weight",
    "reward.outcome_weight": "algorithm.outcome_weight",
    "reward.policy_band": "algorithm.band",
    "reward.reward_band": "reward.band",
    "reward.step_discount": "algorithm.options.step_discount",
    "reward.step_weight": "algorithm.step_weight",
}
MAX_SHOWN = 120  # characters of a value in a message
KINDS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
TOLD = re.compile(r"missing|literal_error|finite_number|(greater|less)_than.*|.*_type")
"""pydantic's types of errors that `expected` explains."""
BOUNDS: dict[type, str] = {Gt: "above {.gt:g}", Ge: "of at least {.ge:g}", Lt: "below {.lt:g}", Le: "at most {.le:g}"}


def expected(field: FieldInfo) -> str:
    """Describe in words the values that a field takes."""
    marked = [mark.words for mark in field.metadata if isinstance(mark, Expected)]
    bounds = " and ".join(BOUNDS[type(bound)].format(bound) for bound in field.metadata if type(bound) in BOUNDS)
    bounds = re.sub(r"of at least (\S+) and at most (\S+)", r"from \1 to \2", bounds)
    return marked[0] if marked else f"{_kind(field.annotation)} {bounds}".rstrip()


def _kind(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is list:
        [element] = get_args(kind)
        several = {str: "texts", float: "numbers", int: "whole numbers"}.get(element)
        return f"a list of {several or _kind(element).replace('one of', 'some of')}"
    if get_origin(kind) is dict or is_section(kind):
        return "a mapping of keys"
    return KINDS.get(kind, str(kind))


def messages(
    error: ValidationError,
    schema: type[Section],
    given: Mapping[str, Any],
    sources: Mapping[str, str],
    root: str = "",
    published: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """One message for each key that is at fault.

    `given` is what was validated, `sources` says where each of its keys was set, and `root` stands before all keys.
    `published` has the published code's keys and what takes their place.
    """
    found: dict[str, str] = {}
    for fault in error.errors(include_url=False):
        key, section, field = root, schema, None
        value: Any = given
        for part in map(str, fault["loc"]):
            key = f"{key}.{part}" if key else part
            value = value.get(part) if isinstance(value, Mapping) else value
            field = section.model_fields.get(part)
            if field is None or not is_section(field.annotation):
                break
            section = field.annotation
        if key in MOVED:
            text = f"moved to {MOVED[key]}"
        elif key in published:
            text = f"a key of the published code; here: {published[key]} ({PAGE})"
        elif fault["type"] == "extra_forbidden":
            text = _unknown(part, section, schema, root)
        elif field is None:  # a rule of the whole section
            text = fault["msg"].removeprefix("Value error, ")
        else:
            text = f"found {'nothing' if fault['type'] == 'missing' else shown(value)}{_expectation(field, fault)}"
        found.setdefault(key, f"{key}: {text}" + (f" (from {sources[key]})" if key in sources else ""))
    return list(found.values())


def shown(value: object) -> str:
    """A value as an error message shows it."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return text if len(text := repr(value)) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _expectation(field: FieldInfo, fault: ErrorDetails) -> str:
    marked = any(isinstance(mark, Expected) for mark in field.metadata)
    if not (marked or TOLD.fullmatch(fault["type"])):
        return f": {fault['msg'].removeprefix('Value error, ')}"  # a rule that `expected` does not tell
    in_quotes = fault["type"] == "string_type" and isinstance(fault["input"], (int, float))
    return f", expected {expected(field)}{' in quotes' if in_quotes else ''}"


def _unknown(name: str, section: type[Section], schema: type[Section], root: str) -> str:
    """Suggest a similar key of the same section in the place of an unknown one, or one of the same name elsewhere."""
    if "." in name:
        return "a YAML file nests its keys and has none with a dot; write a mapping for each section"
    beside = list(section.model_fields)
    alike = get_close_matches(name, beside, 1) or [key for key in _keys(schema, root) if key.endswith(f".{name}")]
    hint = f", did you mean {' or '.join(alike)}?" if alike else ";"
    return f"unknown{hint} known keys there: {', '.join(beside) or 'none'}"


def _keys(schema: type[Section], root: str) -> Iterator[str]:
    for name, field in schema.model_fields.items():
        key = f"{root}.{name}" if root else name
        yield from _keys(field.annotation, key) if is_section(field.annotation) else [key]
