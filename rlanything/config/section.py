"""The base model of all sections, and the field types that several of them use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Role = Literal["policy", "reward", "rewriter"]
"""A model of a run."""
Learner = Literal["policy", "reward"]
"""A role whose model is trained."""


class Section(BaseModel):
    """A part of the configuration. The docstring under a field is its meaning, with the unit in brackets.

    Types are strict: neither a bool nor a float is taken for an int, and no number is infinite or nan.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, validate_assignment=True, use_attribute_docstrings=True
    )


@dataclass(frozen=True)
class Expected:
    """Annotates a field whose type does not say what it takes."""

    words: str


def _ascending(band: list[float]) -> list[float]:
    if not (len(band) == 2 and 0 <= band[0] <= band[1] <= 1):
        raise ValueError("not a band")
    return band


def _decays(betas: list[float]) -> list[float]:
    if not (len(betas) == 2 and all(0 <= beta < 1 for beta in betas)):
        raise ValueError("not two decay rates")
    return betas


Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Band = Annotated[list[float], AfterValidator(_ascending), Expected("[low, high] with 0 <= low <= high <= 1")]
Betas = Annotated[list[float], AfterValidator(_decays), Expected("two numbers of at least 0 and below 1")]
PathText = Annotated[str, AfterValidator(os.path.expanduser)]
"""A path whose `~` is expanded when it is validated. It stays text, because a model's path may be a name on a hub."""
