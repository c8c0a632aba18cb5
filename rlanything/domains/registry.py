"""Which domain a configuration names."""

from rlanything.config.options import check_options
from rlanything.config.schema import Config, ConfigError, DatasetConfig
from rlanything.config.section import Section
from rlanything.domains.alfworld.domain import AlfworldDomain
from rlanything.domains.alfworld.options import Options as AlfworldOptions
from rlanything.domains.base import Domain
from rlanything.domains.coding.domain import CodingDomain
from rlanything.domains.coding.options import Options as CodingOptions

OPTIONS: dict[str, type[Section]] = {"alfworld": AlfworldOptions, "coding": CodingOptions}


def resolve_options(dataset: DatasetConfig) -> None:
    """Set every option of the domain that is left out, so that the run's configuration tells all of them.

    Raises ConfigError for an unknown domain, and for options that do not fit it.
    """
    dataset.options = check_options(_options_of(dataset.domain), dataset.options).model_dump()


def make_domain(config: Config) -> Domain:
    """The domain that `dataset.domain` names. Raises ConfigError as `resolve_options` does."""
    if _options_of(config.dataset.domain) is CodingOptions:
        return CodingDomain(config.dataset, config.sandbox)
    return AlfworldDomain(config.dataset, config.experiment.name, config.rollout.max_interaction_step)


def _options_of(domain: str) -> type[Section]:
    if domain not in OPTIONS:
        raise ConfigError(f"dataset.domain: found {domain!r}, expected one of {', '.join(OPTIONS)}")
    return OPTIONS[domain]
