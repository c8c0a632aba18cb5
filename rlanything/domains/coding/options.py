"""The options of coding (`dataset.options`)."""

from __future__ import annotations

from pydantic import NonNegativeFloat, NonNegativeInt

from rlanything.config.section import Section


class CodingOptions(Section):
    """Coding's own keys."""

    num_test: NonNegativeInt = 0
    """Tests of a problem that decide whether a program is correct, the first ones. 0 takes all."""
    float_tolerance: NonNegativeFloat = 1e-6
    """Largest error of an expected number with a decimal point or exponent, absolute or relative."""
    skip_bad: bool = False
    """Leave out rows that are no problems. Otherwise such a row stops the run."""
