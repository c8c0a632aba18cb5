"""The configuration of a sweep: variants of one training, each with several seeds."""

from typing import Annotated

from pydantic import Field, PositiveInt

from rlanything.config.section import Expected, Pair, PathText, Section


class SweepConfig(Section):
    """Trainings that differ in some keys, compared on the same tasks and seeds."""

    base: Annotated[PathText, Field(min_length=1), Expected("a YAML file")]
    """YAML file of the training that all variants begin from."""
    output: Annotated[PathText, Field(min_length=1), Expected("a folder")]
    """Folder of all runs, each named `VARIANT_SEED`, and of the sweep's tables."""
    seeds: list[int] = [0]
    """Seeds of each variant."""
    variants: dict[str, list[str]] = {}
    """Each variant's name and its words, key=value, as a command line takes them. The others are compared with the
    first. In a word {seed} is the seed, and {_seed} is "_" and the seed, but nothing for seed 0."""
    compare: Annotated[list[Annotated[list[str], Pair]], Expected("a list of pairs of variants")] = []
    """Pairs of variants [A, B] to compare besides: the tables tell A less B."""
    common: list[str] = []
    """Words of all variants, which come before their own."""
    at_once: PositiveInt = 1
    """Trainings that run at once, each on its share of the cores."""
