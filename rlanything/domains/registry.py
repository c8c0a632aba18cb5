"""Which domain a configuration names."""

from rlanything.config.schema import Config
from rlanything.domains.alfworld.domain import AlfworldDomain
from rlanything.domains.base import Domain
from rlanything.domains.coding.domain import CodingDomain


def make_domain(config: Config) -> Domain:
    """The domain that `dataset.domain` names (the schema has checked the name)."""
    if config.dataset.domain == "coding":
        return CodingDomain(config.dataset, config.sandbox)
    return AlfworldDomain(
        config.dataset, config.dataset.project or config.experiment.name, config.rollout.max_interaction_step
    )
