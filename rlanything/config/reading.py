"""YAML as plain data, each scalar read by the type of its key.

PyYAML's own constructors lose what was written: `001` becomes 1, `2024-01-01` a date and `yes` a bool. Here a text key
keeps its scalar as written. Any other unquoted scalar is a number, true, false or null if YAML 1.2's core schema says
so, else text, and the schema then refuses what does not fit.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeGuard, get_args, get_origin

import yaml

from rlanything.config.section import Section

INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
WORDS: Mapping[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


class _Loader(yaml.SafeLoader):
    """Refuses what a mapping of keys cannot be. PyYAML would keep the last of two equal keys."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in seen:
                what = f"the key {key.value} twice" if isinstance(key, yaml.ScalarNode) else "a key that is no text"
                raise yaml.MarkedYAMLError(problem=f"found {what}", problem_mark=key.start_mark)
            seen.add(key.value)
        return node


def read_yaml(text: str, kind: Any) -> Any:
    """The data of a YAML document; `kind` is the type that the schema expects, None if it expects nothing.

    Raises yaml.YAMLError.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        return None if node is None else _plain(loader, node, kind)
    except RecursionError:
        raise yaml.MarkedYAMLError(problem="found an alias that contains itself, or too many levels") from None
    finally:
        loader.dispose()


def is_text(kind: Any) -> bool:
    """Return True if a type holds text only."""
    return kind is str or (get_origin(kind) is Literal and all(isinstance(choice, str) for choice in get_args(kind)))


def is_section(kind: Any) -> TypeGuard[type[Section]]:
    """Return True if a type is a section of keys."""
    return isinstance(kind, type) and issubclass(kind, Section)


def kind_of(kind: Any, key: str) -> Any:
    """The type that the schema `kind` expects at a dotted key; None if it expects nothing there."""
    for part in key.split("."):
        field = kind.model_fields.get(part) if is_section(kind) else None
        kind = field.annotation if field else None
    return kind


def scalar(text: str) -> object:
    """An unquoted scalar by YAML 1.2's core schema, except that whole numbers such as 007 and +7 stay text."""
    if INTEGER.fullmatch(text):
        return int(text)
    if NUMBER.fullmatch(text) and not text.lstrip("+-").isdigit():
        return float(text)
    return WORDS.get(text, text)


def _plain(loader: _Loader, node: yaml.Node, kind: Any) -> Any:
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)  # `<<`, YAML's merge key
        return {key.value: _plain(loader, value, kind_of(kind, key.value)) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        element = next(iter(get_args(kind)), None) if get_origin(kind) is list else None
        return [_plain(loader, value, element) for value in node.value]
    quoted = isinstance(node, yaml.ScalarNode) and node.style is not None
    if is_text(kind) or quoted:
        return node.value
    found = scalar(node.value)
    return {} if found is None and is_section(kind) else found  # a section whose keys are all commented out
