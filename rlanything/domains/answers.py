"""Parsers of model answers that serve several domains."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_SCORES = {"1": 1, "+1": 1, "-1": -1}


def boxed(text: str) -> list[str]:
    """The contents of every \\boxed{...}, white space joined."""
    return [" ".join(found.split()) for found in _BOXED.findall(text)]


def parse_score(text: str) -> tuple[int | None, str]:
    """(the score, "") if exactly one value is boxed, 1 or -1, else (None, why there is no score)."""
    found = boxed(text)
    if len(found) != 1:
        return None, f"{len(found)} boxed scores, expected one"
    score = _SCORES.get(found[0])
    return (score, "") if score is not None else (None, f"boxed {found[0]!r}, expected 1 or -1")


def last_object(text: str, keys: Sequence[str]) -> dict[str, Any] | None:
    """The last JSON object in a text that has all of `keys`; None if there is none."""
    decoder, found, start = json.JSONDecoder(), None, text.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):  # RecursionError: deeply nested brackets
            end = start + 1
        else:
            if isinstance(value, dict) and all(key in value for key in keys):
                found = value
        start = text.find("{", end)
    return found
