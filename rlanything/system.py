"""The parts of a training run, put together from its configuration: what serves, and what learns."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rlanything.config.roles import Learner as LearnerRole
from rlanything.config.roles import training_roles
from rlanything.config.schema import Config
from rlanything.learner.deepspeed import Learner
from rlanything.runs.folder import RunError, RunFolder
from rlanything.serving import Serving, start_cluster
from rlanything.types import Task

if TYPE_CHECKING:
    from rlanything.cluster.learners import RemoteLearner


class System:
    """Everything that costs time to start. `close` ends all of it."""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        self.config = config
        roles = training_roles(config)
        self._closing = ExitStack()
        self.cluster = start_cluster(config, folder, roles, learns=True)
        if self.cluster:
            self._closing.callback(self.cluster.close)
        splits = (config.dataset.train_split, *config.evaluation.splits)
        self.serving = Serving(config, folder, roles, splits, self.cluster)
        self._closing.callback(self.serving.close)
        self.serving.sleep()  # until the learners are made, and have weights for them
        self.learners: dict[LearnerRole, Learner | RemoteLearner] = {
            "policy": self._learner("policy", folder, config.rollout.temperature)
        }
        if "reward" in roles:
            self.learners["reward"] = self._learner("reward", folder, config.reward.temperature)

    def training_tasks(self) -> list[Task]:
        """The originals to train on, drawn with the seed where `dataset.num_task` limits them."""
        config = self.config
        tasks = sorted(self.serving.domain.tasks(config.dataset.train_split), key=lambda t: t.id)
        if config.dataset.num_task:
            tasks = random.Random(f"{config.experiment.seed}/tasks").sample(
                tasks, min(config.dataset.num_task, len(tasks))
            )
        return tasks

    def sync_weights(self, version: int) -> None:
        """Wake the engines, put the learners' weights into them, in place, and compare checksums on both sides."""
        engines = {role: self.serving.models[role].engine for role in self.learners}
        # A cluster's learners that send them by the host alone gather them now, before an engine takes back any memory.
        weights = {role: learner.weights(engines[role].dtype) for role, learner in self.learners.items()}
        self.serving.wake(cache=False)
        for role, engine in engines.items():
            engine.load_weights(version, weights[role])
        self.serving.wake()
        for role, learner in self.learners.items():
            engine = engines[role]
            ours, theirs = learner.checksum(engine.dtype), engine.checksum()
            if ours != theirs:
                raise RunError(
                    f"weights of the {role} engine differ from the learner's after the transfer: {theirs} != {ours}"
                )

    def end_learners(self) -> None:
        """Break an update that another thread waits for."""
        if self.cluster:
            self.cluster.end_learners()

    def close(self) -> None:
        """End all engines, whatever one of them raises, then release the learners' memory."""
        self._closing.close()

    def _learner(self, role: LearnerRole, folder: RunFolder, temperature: float) -> Learner | RemoteLearner:
        training = self.config.training.of(role)
        total = self.config.experiment.total_step * training.num_update * training.num_epoch
        if self.cluster:
            return self.cluster.learner(role, total, temperature)
        log = folder.logs / "learners.log"  # DeepSpeed has one log for a process
        seed = self.config.experiment.seed
        learner = Learner(self.config.model.of(role), training, total, temperature, seed, log)
        self._closing.callback(learner.close)
        return learner
