"""The domain that a configuration names: a shipped one, or `module:Class` of the user's own."""

from __future__ import annotations

import dataclasses
from typing import Any

from rlanything.config.plugins import load_object, make_options
from rlanything.config.schema import Config, DatasetConfig
from rlanything.config.section import Section
from rlanything.domains.alfworld.domain import AlfworldDomain
from rlanything.domains.alfworld.options import AlfworldOptions
from rlanything.domains.base import Domain
from rlanything.domains.coding.domain import CodingDomain, CodingOptions
from rlanything.domains.gymnasium.domain import GymnasiumDomain
from rlanything.domains.gymnasium.options import GymnasiumOptions
from rlanything.domains.openenv.domain import OpenenvDomain
from rlanything.domains.openenv.options import OpenenvOptions
from rlanything.domains.osworld.domain import OsworldDomain
from rlanything.domains.osworld.options import OsworldOptions
from rlanything.domains.reasoning.domain import ReasoningDomain, ReasoningOptions
from rlanything.errors import ConfigError

SHIPPED: dict[str, type[Domain]] = {
    "alfworld": AlfworldDomain,
    "coding": CodingDomain,
    "gymnasium": GymnasiumDomain,
    "openenv": OpenenvDomain,
    "osworld": OsworldDomain,
    "reasoning": ReasoningDomain,
}
OPTIONS: dict[str, type[Section]] = {
    "alfworld": AlfworldOptions,
    "coding": CodingOptions,
    "gymnasium": GymnasiumOptions,
    "openenv": OpenenvOptions,
    "osworld": OsworldOptions,
    "reasoning": ReasoningOptions,
}


def make_domain(config: Config) -> Domain:
    """The domain that `dataset.domain` names.

    Raises ConfigError if it cannot be imported, is no Domain, lacks a method or does not take the options; TaskError if
    its data is missing.
    """
    return domain_class(config.dataset.domain)(config)


def domain_class(name: str) -> type[Domain]:
    """The class that `dataset.domain` names. Raises ConfigError."""
    kind = SHIPPED.get(name) or load_object("dataset.domain", name, SHIPPED)
    if not (isinstance(kind, type) and issubclass(kind, Domain)):
        raise ConfigError(
            f"dataset.domain: found {name}, which is no subclass of rlanything.domains.base.Domain; derive it from "
            "Domain, with the methods tasks(split) and make_env(task)"
        )
    if missing := sorted(kind.__abstractmethods__):
        raise ConfigError(f"dataset.domain: found {name}, which lacks {', '.join(missing)}; define them in the class")
    return kind


def resolve_options(dataset: DatasetConfig) -> None:
    """Set every option of the domain that is left out, so that the run's configuration shows them all.

    Raises ConfigError for a domain that cannot be used, and for options that do not fit it.
    """
    options: Any = make_options("dataset.options", domain_class(dataset.domain).Options, dataset.options)
    dataset.options = options.model_dump() if isinstance(options, Section) else dataclasses.asdict(options)
