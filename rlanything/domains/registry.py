"""The domain that a configuration names: a shipped one, or `module:Class` of the user's own."""

import dataclasses
from typing import Any

from rlanything.config.plugins import load_object, make_options
from rlanything.config.schema import Config, DatasetConfig
from rlanything.config.section import Section
from rlanything.domains.alfworld.domain import AlfworldDomain
from rlanything.domains.base import Domain
from rlanything.domains.coding.domain import CodingDomain
from rlanything.domains.gymnasium.domain import GymnasiumDomain
from rlanything.domains.openenv.domain import OpenenvDomain
from rlanything.domains.osworld.domain import OsworldDomain
from rlanything.domains.parts import Written
from rlanything.domains.reasoning.domain import ReasoningDomain
from rlanything.domains.templates import Template, load_templates
from rlanything.domains.verifiers.domain import VerifiersDomain
from rlanything.errors import ConfigError
from rlanything.types import Message, Task

SHIPPED: dict[str, type[Domain]] = {
    "alfworld": AlfworldDomain,
    "coding": CodingDomain,
    "gymnasium": GymnasiumDomain,
    "openenv": OpenenvDomain,
    "osworld": OsworldDomain,
    "reasoning": ReasoningDomain,
    "verifiers": VerifiersDomain,
}
OPTIONS: dict[str, type[Section]] = {name: domain.Options for name, domain in SHIPPED.items()}


def make_domain(config: Config) -> Domain:
    """The domain that `dataset.domain` names.

    Raises ConfigError if it cannot be imported, is no Domain, lacks a method or does not take the options, or if a
    template of the prompts is wrong; TaskError if its data is missing.
    """
    templates = load_templates(config.dataset.prompt)
    domain = domain_class(config.dataset.domain)(config)
    parts = {"policy": domain, "judge": domain.judging, "test": domain.judging, "rewrite": domain.rewriting}
    if templates and domain.image_size is not None:
        raise ConfigError(
            f"dataset.prompt: found a folder, but observations of dataset.domain={config.dataset.domain} are images, "
            "which templates cannot show; expected full or compact"
        )
    for name, template in templates.items():
        part, covers = parts[name], getattr(domain.judging, "covers", None)
        if part is None or (name, covers) in (("judge", "task"), ("test", "turn")):
            raise ConfigError(
                f"dataset.prompt: {template.path}: dataset.domain={config.dataset.domain} asks for no {name}"
            )
        part.written = _written(domain, template)
    return domain


def _written(domain: Domain, template: Template) -> Written:
    def written(task: Task, **variables: Any) -> list[Message]:
        return template.messages(task=domain.describe(task), payload=task.payload, **variables)

    return written


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


def check_entry(name: str, expected: str, command: str) -> None:
    """Raise ConfigError if the domain is not the shipped one of an entry point, nor derived from it."""
    if expected and not issubclass(domain_class(name), SHIPPED[expected]):
        raise ConfigError(f"dataset.domain: found {name}, expected {expected}; run `rlanything {command}` for it")


def resolve_options(dataset: DatasetConfig) -> None:
    """Set every option of the domain that is left out, so that the run's configuration shows them all.

    Raises ConfigError for a domain that cannot be used, and for options that do not fit it.
    """
    options: Any = make_options("dataset.options", domain_class(dataset.domain).Options, dataset.options)
    dataset.options = options.model_dump() if isinstance(options, Section) else dataclasses.asdict(options)
