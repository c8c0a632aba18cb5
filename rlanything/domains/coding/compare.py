"""Whether a program's output is the expected one: token by token, floats within a tolerance."""

from __future__ import annotations

import math


def same_output(expected: str, found: str, tolerance: float) -> bool:
    """Tokens are what white space separates. One that is expected with a decimal point or an exponent may differ by
    `tolerance`, absolutely or relatively, whichever is more; every other must be the same to the letter."""
    wanted, given = expected.split(), found.split()
    return len(wanted) == len(given) and all(
        a == b or _near(a, b, tolerance) for a, b in zip(wanted, given, strict=True)
    )


def _near(expected: str, found: str, tolerance: float) -> bool:
    if "." not in expected and "e" not in expected.lower():
        return False
    try:
        a, b = float(expected), float(found)
    except ValueError:
        return False
    return math.isfinite(a) and math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
