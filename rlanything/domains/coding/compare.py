"""Compares a program's output with the expected one. Pure."""

import json
import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
MAX_INT_DIGITS = 4000
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)


def same_output(expected: str, found: str, tolerance: float, numbers_by_value: bool = True) -> bool:
    """Say whether `found` is the `expected` output, token by token; white space separates tokens.

    Tokens must be equal as text. With `numbers_by_value`, as most judges have it, numbers may also be written in
    another way (10 and 10.0, 0 and -0.0), and a number that is expected with a decimal point or an exponent may differ
    by `tolerance`, absolute or relative, whichever is larger. Leading zeros of integers count: 007 is not 7.
    """
    expected_tokens, found_tokens = expected.split(), found.split()
    return len(expected_tokens) == len(found_tokens) and all(
        a == b or (numbers_by_value and _same_number(a, b, tolerance))
        for a, b in zip(expected_tokens, found_tokens, strict=True)
    )


def _same_number(expected: str, found: str, tolerance: float) -> bool:
    if not (_NUMBER.fullmatch(expected) and _NUMBER.fullmatch(found)):
        return False
    if _INTEGER.fullmatch(expected) and _INTEGER.fullmatch(found):
        return _sign_and_digits(expected) == _sign_and_digits(found)
    try:
        if Decimal(expected) == Decimal(found):
            return True
    except InvalidOperation:  # more digits than decimals can have
        return False
    return not _INTEGER.fullmatch(expected) and _is_close(float(expected), float(found), tolerance)


def _sign_and_digits(integer: str) -> tuple[bool, str]:
    digits = integer.lstrip("+-")
    return integer.startswith("-") and digits.strip("0") != "", digits


def _is_close(expected: float, found: float, tolerance: float) -> bool:
    return math.isfinite(expected) and math.isclose(expected, found, rel_tol=tolerance, abs_tol=tolerance)


def same_value(expected: str, found: str, tolerance: float) -> bool:
    """Say whether two texts are the same JSON value. Fractions may differ by `tolerance`, as in `same_output`."""
    try:
        a, b = (json.loads(text, parse_int=_whole) for text in (expected, found))
        return _same_json(a, b, tolerance)
    except (ValueError, RecursionError, ArithmeticError):  # nested too deeply; more digits than decimals can have
        return False


def _whole(digits: str) -> int | Decimal:
    """Python makes no int of more than 4,300 digits; a decimal of as many is exact."""
    return int(digits) if len(digits) < MAX_INT_DIGITS else Decimal(digits)


def _float(number: float | Decimal) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _same_json(expected: Any, found: Any, tolerance: float) -> bool:
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(
            _same_json(a, b, tolerance) for a, b in zip(expected, found, strict=True)
        )
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(
            _same_json(value, found[key], tolerance) for key, value in expected.items()
        )
    if isinstance(expected, bool) or isinstance(found, bool):  # to Python, True is 1
        return expected is found
    if isinstance(expected, float) and isinstance(found, int | float | Decimal):
        return (
            expected == found
            or (expected != expected and found != found)
            or _is_close(expected, _float(found), tolerance)
        )
    return bool(expected == found)
