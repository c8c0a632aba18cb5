"""The parts of a run on Ray, with several processes, accelerators and nodes, in place of those of one process."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from rlanything.cluster.board import NAME, Board
from rlanything.cluster.engines import ReplicatedEngine
from rlanything.cluster.health import HealthCheck
from rlanything.cluster.hosts import RESTARTS, EnvHost, HostCollector, close_hosts
from rlanything.cluster.learners import LearnerGroup, LearnerRank, RemoteLearner
from rlanything.cluster.nodes import with_dtypes
from rlanything.cluster.replica import REPLICA_OPTIONS, EngineReplica
from rlanything.cluster.runtime import Runtime
from rlanything.config.roles import LEARNERS
from rlanything.config.section import Learner, Role
from rlanything.engines.base import Engine
from rlanything.engines.chat import Chat
from rlanything.engines.chat_model import ChatModel
from rlanything.plan.plan import Plan
from rlanything.runs.folder import RunFolder


class Cluster:
    """Starts the processes of a run in the places that its plan gives them."""

    def __init__(self, plan: Plan, folder: RunFolder, data: Path | None) -> None:
        """`data` is the domain's folder, which every node must see.

        Raises RunError or VersionError if a node does not allow the plan.
        """
        config, self.plan, self.folder = plan.config, plan, folder
        self.placement, self.logs = plan.placement, folder.logs.absolute()
        models = [Path(config.model.of(role).path) for role in plan.roles]
        paths = [folder.path, *([data.absolute()] if data else []), *models]
        self.runtime = Runtime(config, [path for path in paths if path.is_dir()])
        if data:  # the domain may have found it through an environment variable, which other nodes need not have
            dataset = config.dataset.model_copy(update={"path": str(data.absolute())})
            config = config.model_copy(update={"dataset": dataset})
        self.config = with_dtypes(config, self.runtime.nodes)
        self.board = self.runtime.start_here(Board, name=NAME)
        self._health = HealthCheck(config.cluster.restart_timeout_s)
        self._learners: LearnerGroup | None = None
        self._hosts: list[Any] = []
        # A process takes many seconds to import and to load, so all begin at once. Engines of one accelerator do not:
        # vLLM measures how much memory is free when it starts.
        at_once = config.experiment.num_node * config.experiment.num_device != 1
        self._replicas = {role: self._start_replicas(role) for role in plan.roles} if at_once else {}
        self._ranks = self._start_ranks() if plan.learners and at_once else []

    def chat_model(self, role: Role, chat: Chat) -> ChatModel:
        """A role's replicas as one engine, with its chat. Raises EngineError if a replica cannot start."""
        config, replicas = self.config, self._replicas.pop(role, None) or self._start_replicas(role)
        engine = ReplicatedEngine(role, config, replicas, self.board, str(self.logs / f"engine_{role}_*.log"))
        engine.stats()  # returns once all are up
        for i, replica in enumerate(replicas):
            self._health.watch(replica, f"replica {i} of the {role} engine", config.engine.of(role).step_timeout_s)
        return ChatModel(engine, chat)

    def _start_replicas(self, role: Role) -> list[Any]:
        config, sleeps = self.config, self.placement.shares_devices
        options = REPLICA_OPTIONS | {"max_restarts": config.cluster.num_restart}
        return [
            self.runtime.start(
                EngineReplica, slot, role, config, self.logs / f"engine_{role}_{i}.log", sleeps, **options
            )
            for i, slot in enumerate(self.placement.engines[role])
        ]

    def _start_ranks(self) -> list[Any]:
        arguments = (self.config, self.logs, self.placement.shares_devices)
        slots = enumerate(self.placement.learners)
        return [self.runtime.start(LearnerRank, slot, rank, *arguments) for rank, slot in slots]

    def collector(self, models: Mapping[Role, ChatModel], splits: Sequence[str]) -> HostCollector:
        """Start the environment hosts. They call the replicas without going through this process."""
        config, slots = self.config, self.placement.hosts
        engines: dict[Role, Engine] = {role: models[role].engine for role in LEARNERS if role in models}
        options = {"max_restarts": config.cluster.num_restart}
        self._hosts = [self.runtime.start(EnvHost, slot, config, splits, list(engines), **options) for slot in slots]
        return HostCollector(self._hosts, config.cluster, engines)

    def learner(self, role: Learner, total_update: int, temperature: float) -> RemoteLearner:
        """Make a role's learner on all ranks, which join each other first."""
        if self._learners is None:
            ranks = self._ranks or self._start_ranks()
            self._learners = LearnerGroup(ranks, self.config.cluster.rank_timeout_s)
        self._learners.call("load_model", role, total_update, temperature)
        return RemoteLearner(self._learners, role, self.plan.routes[role])

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
        try:
            close_hosts(self._hosts)
        finally:
            self.runtime.close()
