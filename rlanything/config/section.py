"""The base model of all sections, the field types that several of them use, and the roles of models."""

import os
from dataclasses import dataclass
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Role = Literal["policy", "reward", "rewriter"]
"""A model of a run: the policy acts, the reward model judges, and the rewriter rewrites tasks."""
Learner = Literal["policy", "reward"]
"""A role whose model is trained."""


class Section(BaseModel):
    """A part of the configuration. The docstring under a field is its meaning, with the unit in brackets.

    Types are strict: neither a bool nor a float is taken for an int, and no number is infinite or nan.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, validate_assignment=True, use_attribute_docstrings=True
    )


S = TypeVar("S", bound=Section)


class ByRole(Section, Generic[S]):
    """A section that holds one section of the same shape for each role."""

    def of(self, role: Role) -> S:
        """The section of a role."""
        section: S = getattr(self, role)
        return section


@dataclass(frozen=True)
class Expected:
    """Annotates a field whose type does not say what it takes."""

    words: str


def _ascending(band: list[float]) -> list[float]:
    if band != sorted(band):
        raise ValueError("low is above high")
    return band


Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Pair = Field(min_length=2, max_length=2)
Band = Annotated[list[Share], Pair, AfterValidator(_ascending), Expected("[low, high] with 0 <= low <= high <= 1")]
Betas = Annotated[list[Decay], Pair, Expected("two numbers of at least 0 and below 1")]
PathText = Annotated[str, AfterValidator(os.path.expanduser)]
"""A path whose `~` is expanded when it is validated. It stays text, because a model's path may be a name on a hub."""
