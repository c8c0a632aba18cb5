"""Which domain a configuration names: a shipped one, or `module:Class` of anybody's."""

from __future__ import annotations

from rlanything.config.plugins import load_object
from rlanything.config.schema import Config
from rlanything.domains.base import Domain
from rlanything.errors import ConfigError

SHIPPED = {
    "alfworld": "rlanything.domains.alfworld.domain:AlfworldDomain",
    "coding": "rlanything.domains.coding.domain:CodingDomain",
}


def make_domain(config: Config) -> Domain:
    """The domain that `dataset.domain` names.

    Raises ConfigError if it cannot be imported, is no Domain, lacks a method or does not take the options; TaskError if
    its data is missing.
    """
    name = config.dataset.domain
    kind = load_object("dataset.domain", SHIPPED.get(name, name), SHIPPED)
    if not (isinstance(kind, type) and issubclass(kind, Domain)):
        raise ConfigError(
            f"dataset.domain: found {name}, which is no subclass of rlanything.domains.base.Domain; derive it from "
            "Domain, with the methods tasks(split) and make_env(task)"
        )
    if missing := sorted(kind.__abstractmethods__):
        raise ConfigError(f"dataset.domain: found {name}, which lacks {', '.join(missing)}; define them in the class")
    return kind(config)
