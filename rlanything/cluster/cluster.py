"""The parts of a run on Ray, with several processes, accelerators and nodes, in place of those of one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import ray

from rlanything.cluster.board import NAME, Board
from rlanything.cluster.engines import ReplicatedEngine, start_replicas
from rlanything.cluster.health import HealthCheck
from rlanything.cluster.hosts import RESTARTS, HostCollector
from rlanything.cluster.learners import LearnerGroup, RemoteLearner
from rlanything.cluster.nodes import with_dtypes
from rlanything.cluster.runtime import Runtime
from rlanything.config.roles import Learner, Role
from rlanything.engines import check_model
from rlanything.engines.chat import Chat
from rlanything.engines.chat_model import ChatModel
from rlanything.plan.plan import Plan
from rlanything.runs.folder import RunFolder


class Cluster:
    """Starts the processes that a run with `roles` needs, in the places that its plan gives them.

    Raises ConfigError, EngineError, RunError or VersionError if the plan, a model or a node does not allow that.
    """

    def __init__(self, plan: Plan, folder: RunFolder, data: Path | None) -> None:
        """`data` is the domain's folder, which every node must see. Raises EngineError, RunError or VersionError."""
        config, self.plan, self.folder = plan.config, plan, folder
        self.placement = plan.placement
        models = [Path(config.model.of(role).path) for role in plan.roles]
        for role in plan.roles:  # found here: a replica that cannot start would be restarted in vain
            check_model(config.model.of(role), config.engine.of(role))
        paths = [folder.path, *([data.absolute()] if data else []), *models]
        self.runtime = Runtime(config, [path for path in paths if path.is_dir()])
        if data:  # the domain may have found it through an environment variable, which other nodes need not have
            dataset = config.dataset.model_copy(update={"path": str(data.absolute())})
            config = config.model_copy(update={"dataset": dataset})
        self.config = with_dtypes(config, self.runtime.nodes)
        self.board = self.runtime.start_here(Board, name=NAME)
        self._health = HealthCheck(config.cluster.restart_timeout_s)
        self._learners: LearnerGroup | None = None

    def chat_model(self, role: Role) -> ChatModel:
        """Start a role's replicas; return them as one engine, with its chat."""
        model, engine = self.config.model.of(role), self.config.engine.of(role)
        log, seed = self.folder.logs.absolute() / f"engine_{role}.log", self.config.experiment.seed
        slots, cluster = self.placement.engines[role], self.config.cluster
        sleeps = self.placement.shares_devices
        replicas = start_replicas(self.runtime, slots, role, model, engine, seed, log, self.board, cluster, sleeps)
        for i, replica in enumerate(replicas.replicas):
            self._health.watch(replica, f"replica {i} of the {role} engine", engine.step_timeout_s)
        return ChatModel(replicas, Chat(model))

    def collector(self, models: Mapping[Role, ChatModel], splits: Sequence[str]) -> HostCollector:
        """Start the environment hosts. They call the replicas without going through this process."""
        engines = {role: model.engine for role, model in models.items()}
        replicated = {role: engine for role, engine in engines.items() if isinstance(engine, ReplicatedEngine)}
        return HostCollector(self.runtime, self.placement.hosts, self.config, splits, replicated)

    def learner(self, role: Learner, total_update: int, temperature: float) -> RemoteLearner:
        """Make a role's learner on all ranks; start the ranks first if they do not run yet."""
        if self._learners is None:
            log, timeout_s = self.folder.logs.absolute() / "learners.log", self.config.cluster.rank_timeout_s
            slots, shares_devices = self.placement.learners, self.placement.shares_devices
            self._learners = LearnerGroup(self.runtime, slots, log, shares_devices, timeout_s)
        model, training = self.config.model.of(role), self.config.training.of(role)
        seed = self.config.experiment.seed
        return self._learners.learner(role, self.plan.routes[role], model, training, total_update, temperature, seed)

    def end_learners(self) -> None:
        """Kill every rank: calls that wait for one raise RunError."""
        if self._learners:
            self._learners.close()

    def faults(self) -> dict[str, float]:
        """The number of restarted replicas, reissued requests and restarted hosts since the run began."""
        counted = ray.get(self.board.faults.remote())
        kinds = [f"engine/{role}_{what}" for role in self.plan.roles for what in ("restarts", "reissued")]
        return {kind: float(counted[kind]) for kind in (*kinds, RESTARTS)}

    def close(self) -> None:
        """End every process of this run and leave the cluster."""
        self._health.close()
        self.runtime.close()
