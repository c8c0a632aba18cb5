"""What `dataset.options` of the coding domain may hold."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class CodingOptions(BaseModel):
    """Options of the coding domain."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    skip_bad: bool = False
    """Leave out rows that are no problems, with a warning. Otherwise they are refused."""
    num_test: int = Field(default=0, ge=0)
    """Tests of a problem that decide whether a program is correct; 0 for all."""
    float_tolerance: float = Field(default=1e-6, ge=0, allow_inf_nan=False)
    """How far an output may miss an expected number with a decimal point (absolute or relative)."""
