"""Compares a program's output with the expected one, token by token."""

from __future__ import annotations

import math


def same_output(expected: str, found: str, tolerance: float) -> bool:
    """Say whether `found` is the `expected` output, apart from white space.

    Tokens are separated by white space and must be equal. An expected token with a decimal point or an exponent may
    differ by `tolerance`, absolute or relative, whichever is larger.
    """
    expected_tokens, found_tokens = expected.split(), found.split()
    return len(expected_tokens) == len(found_tokens) and all(
        a == b or _is_close(a, b, tolerance) for a, b in zip(expected_tokens, found_tokens, strict=True)
    )


def _is_close(expected: str, found: str, tolerance: float) -> bool:
    if "." not in expected and "e" not in expected.lower():
        return False
    try:
        a, b = float(expected), float(found)
    except ValueError:
        return False
    return math.isfinite(a) and math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
