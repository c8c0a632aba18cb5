"""The plan of a run: decided once from its configuration, then handed down. Pure."""

from dataclasses import dataclass

from rlanything.config.roles import engine_roles, learner_roles, needs_cluster
from rlanything.config.schema import Config
from rlanything.config.section import Learner, Role
from rlanything.plan.placement import Placement, Route, place, route


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Roles, processes and the way of weights of one run."""

    config: Config
    roles: tuple[Role, ...]
    """The models that have an engine."""
    learners: tuple[Learner, ...]
    """The models that train; none in an evaluation."""
    placement: Placement
    """Where engines, learner ranks and environment hosts run, if the run is several processes."""
    routes: dict[Learner, Route]
    """The way of new weights from each learner to its engines."""

    @property
    def needs_cluster(self) -> bool:
        """True if one process on the CPU is not enough."""
        return needs_cluster(self.config)


def make_plan(config: Config, learns: bool) -> Plan:
    """The plan of a training run, or of an evaluation. Raises ConfigError if it cannot fit."""
    roles = engine_roles(config, learns)
    learners = tuple(learner_roles(config)) if learns else ()
    placement = place(config, roles, learns)
    routes = {role: route(config, placement, role) for role in learners}
    return Plan(config=config, roles=tuple(roles), learners=learners, placement=placement, routes=routes)
