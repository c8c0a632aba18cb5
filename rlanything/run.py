"""The parts of one run, started from its plan: domain, engines, learners and collector."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from rlanything.config.schema import Config
from rlanything.config.section import Learner, Role
from rlanything.domains.registry import make_domain
from rlanything.engines.base import EngineStats, peak_memory_gb
from rlanything.engines.chat import Chat
from rlanything.engines.chat_model import ChatModel, start_chat_model
from rlanything.errors import RunError
from rlanything.evaluation.play import evaluation_tasks
from rlanything.launch.membership import JOB_NODES
from rlanything.plan.checks import check_domain
from rlanything.plan.models import check_images, check_models, check_tools
from rlanything.plan.plan import Plan
from rlanything.plan.prompts import check_templates
from rlanything.plan.tasks import training_tasks
from rlanything.processes.environment import hidden_accelerators
from rlanything.processes.versions import check_vllm
from rlanything.rollout.collect import Batch, Collect, Collector
from rlanything.rollout.digest import Digest
from rlanything.runs.folder import RunFolder
from rlanything.types import Task

if TYPE_CHECKING:
    from rlanything.cluster.cluster import Cluster
    from rlanything.cluster.learners import RemoteLearner
    from rlanything.learner.deepspeed import Learner as LocalLearner

LONG_LOAD_S = 10.0  # loading a part of a run is worth a line if it takes longer


class Run:
    """Everything of a run that takes time to start. `close` ends all of it.

    A run in one process has its engines and learners here. Otherwise `cluster` has them as replicas and ranks, and
    episodes run in its environment hosts. An evaluation has no learners.

    Raises ConfigError, TaskError, ModelError, EngineError, LearnerError or RunError naming what is missing.
    """

    def __init__(self, plan: Plan, folder: RunFolder, say: Callable[[str], None] = lambda line: None) -> None:
        """`say` gets a line about what the data leave out, and about each part that took long to load."""
        self.plan, self.config = plan, plan.config
        config = plan.config
        torch.set_num_threads(config.experiment.num_thread or len(os.sched_getaffinity(0)))
        self._closing = ExitStack()
        try:
            check_job(config)
            self.domain = make_domain(config)
            self._closing.callback(self.domain.close)
            splits = list(config.evaluation.splits)
            if plan.learners:
                check_domain(config, self.domain)
                splits.insert(0, config.dataset.train_split)
            self.domain.prepare(splits)
            chats = check_models(plan, plan.roles)
            check_images(plan, chats, self.domain.image_size)
            check_tools(chats, self.domain)
            for task in self.domain.tasks(splits[0])[:1]:
                check_templates(self.domain, task, chats)
            self.originals = self._admit(splits, say)  # it may take minutes, so all checks come first
            self.cluster: Cluster | None = None
            if plan.needs_cluster:
                from rlanything.cluster import cluster  # Ray takes seconds, and need not be installed

                self.cluster = cluster.Cluster(plan, folder, self.domain.root)
                self._closing.callback(self.cluster.close)
            self.models: dict[Role, ChatModel] = {}
            for role in plan.roles:
                with _timed(f"the {role} engine", say):
                    self.models[role] = self._chat_model(role, chats[role], folder)
                self._closing.callback(self.models[role].engine.close)
            self._collect: Collect = (
                self.cluster.collector(self.models, splits)
                if self.cluster
                else Collector(self.domain, self.models["policy"], self.models.get("reward"), config)
            ).collect
            self._counted: dict[Role, EngineStats] = {}
            self._shares_devices = self.cluster is not None and plan.placement.shares_devices
            self._asleep = False
            self.sleep()  # until the learners exist and have weights for the engines
            self.learners = {}
            for role in plan.learners:
                with _timed(f"the {role} learner", say):
                    self.learners[role] = self._learner(role, folder)
        except BaseException:
            self.close()
            raise

    def _admit(self, splits: Sequence[str], say: Callable[[str], None]) -> list[Task]:
        """The tasks to train on, after everything that the run plays from `splits` was tried on this machine."""
        config, domain, originals = self.config, self.domain, list[Task]()
        due = True
        while due:  # what is refused may change what is drawn
            due, lines = False, list[str]()
            if self.plan.learners:
                originals = training_tasks(config, domain, lines.append)
                due |= domain.admit(originals, config.adaptation.enabled, say)
            for split in dict.fromkeys(config.evaluation.splits):
                due |= domain.admit(evaluation_tasks(domain, split, config.evaluation.num_task), False, say)
        for split in dict.fromkeys(splits):
            tasks = domain.tasks(split)
            if whys := [f"{task.id}: {why}" for task in tasks if (why := domain.refusal(task))]:
                lines.append(f"{split}: {len(whys)} of its {len(tasks)} tasks are left out; the first is {whys[0]}")
        for line in lines:
            say(line)
        return originals

    def sleep(self) -> None:
        """Give the memory of engines that share accelerators with learners to the learners."""
        if self._shares_devices and self.plan.learners and not self._asleep:
            self._asleep = True
            for model in self.models.values():
                model.engine.sleep()

    def wake(self, cache: bool = True) -> None:
        """Wake the engines. `cache=False` allocates weights only, for a transfer before learners free their memory."""
        if self._asleep:
            self._asleep = not cache
            for model in self.models.values():
                model.engine.wake(cache)

    async def collect(self, batch: Batch, on_end: Callable[[], None]) -> list[Digest]:
        """Play a batch as `Collector.collect` does. Meanwhile each engine in a process of its own has a core."""
        others = sum(self.config.engine.of(role).own_process for role in self.models) if not self.cluster else 0
        with _fewer_threads(others):
            return await self._collect(batch, on_end)

    def clear_caches(self) -> None:
        """Drop the caches of all engines."""
        for model in self.models.values():
            model.engine.clear_caches()

    def sync_weights(self, version: int) -> None:
        """Wake the engines and load the learners' weights into them. Raises RunError if their checksums then differ."""
        engines = {role: self.models[role].engine for role in self.learners}
        # Learners that send through the object store gather weights now, before the engines take their memory back.
        weights = {role: learner.weights(engines[role].dtype) for role, learner in self.learners.items()}
        self.wake(cache=False)
        for role, engine in engines.items():
            engine.load_weights(version, weights[role])
        self.wake()
        for role, learner in self.learners.items():
            ours, theirs = learner.checksum(engines[role].dtype), engines[role].checksum()
            if ours != theirs:
                raise RunError(
                    f"weights of the {role} engine differ from the learner's after the transfer: {theirs} != {ours}"
                )

    def figures(self) -> dict[str, float]:
        """Metrics: each engine's tokens since the last call, peak memory [GiB], a cluster's faults since the start."""
        figures: dict[str, float] = {}
        for role, model in self.models.items():
            now, last = model.engine.stats(), self._counted.get(role, EngineStats())
            self._counted[role] = replace(now)
            # A replica that died counts from 0 again, so a difference can be negative.
            new = {name: max(0, value - getattr(last, name)) for name, value in vars(now).items()}
            busy, generated, prompt = new["busy_s"], new["generated_tokens"], new["prompt_tokens"]
            figures[f"engine/{role}_generated_tokens"] = generated
            figures[f"engine/{role}_tokens_per_s"] = generated / busy if busy else 0.0
            figures[f"engine/{role}_cached_share"] = new["cached_prompt_tokens"] / prompt if prompt else 0.0
            figures[f"engine/{role}_busy_s"] = busy
        if self.cluster:  # after the counters: a replica that died in this step has been started again by then
            figures |= self.cluster.faults()
        figures["peak_memory_gb"] = peak_memory_gb() + sum(stats.own_memory_gb for stats in self._counted.values())
        return figures

    def end_learners(self) -> None:
        """End an update that another thread waits for."""
        if self.cluster:
            self.cluster.end_learners()

    def close(self) -> None:
        """End all engines and learners, even if one of them raises."""
        self._closing.close()

    def _chat_model(self, role: Role, chat: Chat, folder: RunFolder) -> ChatModel:
        if self.cluster:
            return self.cluster.chat_model(role, chat)
        config, log = self.config, folder.logs / f"engine_{role}.log"
        return start_chat_model(config.model.of(role), config.engine.of(role), config.experiment.seed, log, chat)

    def _learner(self, role: Learner, folder: RunFolder) -> LocalLearner | RemoteLearner:
        config, training = self.config, self.config.training.of(role)
        total = config.experiment.total_step * training.num_update * training.num_epoch
        temperature = config.rollout.temperature if role == "policy" else config.reward.temperature
        if self.cluster:
            return self.cluster.learner(role, total, temperature)
        from rlanything.learner.deepspeed import Learner as LocalLearner  # an evaluation never needs DeepSpeed

        log = folder.logs / "learners.log"  # DeepSpeed has one log per process
        learner = LocalLearner(config.model.of(role), training, total, temperature, config.experiment.seed, log)
        self._closing.callback(learner.close)
        return learner


@contextmanager
def _fewer_threads(num: int) -> Iterator[None]:
    """Use `num` threads less in the block. If there are more threads than cores, OpenMP's spin while they wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before - num))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _timed(what: str, say: Callable[[str], None]) -> Iterator[None]:
    """Load `what` in the block, and say how long it took if somebody may have wondered."""
    started = time.perf_counter()
    yield
    if (seconds := time.perf_counter() - started) > LONG_LOAD_S:
        say(f"loaded {what} in {seconds:.0f} s")


@contextmanager
def use_devices(plan: Plan) -> Iterator[None]:
    """Hide the accelerators in the block if `num_device` is 0. Enter it before torch, DeepSpeed or vLLM use them.

    Raises VersionError if vLLM is built for other devices.
    """
    config = plan.config
    if any(config.engine.of(role).kind == "vllm" for role in plan.roles):
        check_vllm(config.experiment.num_device > 0)
    with nullcontext() if config.experiment.num_device else hidden_accelerators():
        yield


def check_job(config: Config) -> None:
    """Raise RunError if the launched job has another number of nodes than the run would use."""
    num_node = config.experiment.num_node
    nodes = os.environ.get(JOB_NODES, str(num_node))
    if nodes != str(num_node):
        raise RunError(
            f"experiment.num_node={num_node}, but the job has {nodes} nodes: set it to {nodes}, or submit to as many"
        )
