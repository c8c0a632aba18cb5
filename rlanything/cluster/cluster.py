"""The parts of a run on Ray, with several processes, accelerators and nodes, in place of those of one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import ray

from rlanything.cluster.board import NAME, Board
from rlanything.cluster.engines import ReplicatedEngine, start_replicas
from rlanything.cluster.health import HealthCheck
from rlanything.cluster.hosts import RESTARTS, HostCollector
from rlanything.cluster.learners import LearnerGroup, RemoteLearner
from rlanything.cluster.nodes import with_dtypes
from rlanything.cluster.runtime import Runtime
from rlanything.config.roles import LEARNERS
from rlanything.config.schema import Config
from rlanything.domains.registry import make_domain
from rlanything.engines import check_model
from rlanything.engines.chat import Chat, ChatModel
from rlanything.plan.placement import place, route
from rlanything.runs.folder import RunFolder


class Cluster:
    """Starts the processes that a run with `roles` needs, in the places that its plan gives them.

    Raises ConfigError, EngineError, RunError or VersionError if the plan, a model or a node does not allow that.
    """

    def __init__(self, config: Config, folder: RunFolder, roles: Sequence[str], learns: bool = True) -> None:
        data = make_domain(config).root.absolute()
        self.folder = folder
        self.placement = place(config, roles, learns)
        learning = [role for role in roles if learns and role in LEARNERS]
        self._routes = {role: route(config, self.placement, role) for role in learning}
        models = [Path(getattr(config.model, role).path) for role in roles]
        for role in roles:  # fail here: Ray would restart a replica that cannot start
            check_model(getattr(config.model, role), getattr(config.engine, role))
        self.runtime = Runtime(config, [folder.path, *(path for path in (data, *models) if path.is_dir())])
        # An empty path stands for an environment variable, which other nodes need not have.
        config = replace(config, dataset=replace(config.dataset, path=str(data)))
        self.config = with_dtypes(config, self.runtime.nodes)
        self.board = self.runtime.start_here(Board, name=NAME)
        self._roles, self._health = roles, HealthCheck(config.cluster.restart_timeout_s)
        self._learners: LearnerGroup | None = None

    def chat_model(self, role: str) -> ChatModel:
        """Start a role's replicas; return them as one engine, with its chat."""
        model, engine = getattr(self.config.model, role), getattr(self.config.engine, role)
        log, seed = self.folder.logs.absolute() / f"engine_{role}.log", self.config.experiment.seed
        slots, cluster = self.placement.engines[role], self.config.cluster
        sleeps = self.placement.shares_devices
        replicas = start_replicas(self.runtime, slots, role, model, engine, seed, log, self.board, cluster, sleeps)
        for i, replica in enumerate(replicas.replicas):
            self._health.watch(replica, f"replica {i} of the {role} engine", engine.step_timeout_s)
        return ChatModel(replicas, Chat(model))

    def collector(self, models: Mapping[str, ChatModel], splits: Sequence[str]) -> HostCollector:
        """Start the environment hosts. They call the replicas without going through this process."""
        engines = {role: model.engine for role, model in models.items()}
        replicated = {role: engine for role, engine in engines.items() if isinstance(engine, ReplicatedEngine)}
        return HostCollector(self.runtime, self.placement.hosts, self.config, splits, replicated)

    def learner(self, role: str, total_update: int, temperature: float) -> RemoteLearner:
        """Make a role's learner on all ranks; start the ranks first if they do not run yet."""
        if self._learners is None:
            log, timeout_s = self.folder.logs.absolute() / "learners.log", self.config.cluster.rank_timeout_s
            slots, shares_devices = self.placement.learners, self.placement.shares_devices
            self._learners = LearnerGroup(self.runtime, slots, log, shares_devices, timeout_s)
        model, training = getattr(self.config.model, role), getattr(self.config.training, role)
        seed = self.config.experiment.seed
        return self._learners.learner(role, self._routes[role], model, training, total_update, temperature, seed)

    def end_learners(self) -> None:
        """Kill every rank: calls that wait for one raise RunError."""
        if self._learners:
            self._learners.close()

    def faults(self) -> dict[str, float]:
        """The number of restarted replicas, reissued requests and restarted hosts since the run began."""
        counted = ray.get(self.board.faults.remote())
        kinds = [f"engine/{role}_{what}" for role in self._roles for what in ("restarts", "reissued")]
        return {kind: float(counted[kind]) for kind in (*kinds, RESTARTS)}

    def close(self) -> None:
        """End every process of this run and leave the cluster."""
        self._health.close()
        self.runtime.close()
