"""Everything that makes and judges episodes: the domain, the engines of the roles with their chats, the collector."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch

from rlanything.config.roles import Role, needs_cluster
from rlanything.config.schema import Config
from rlanything.domains.registry import make_domain
from rlanything.engines.base import EngineStats, peak_memory_gb
from rlanything.engines.chat import ChatModel, start_chat_model
from rlanything.launch.membership import JOB_NODES
from rlanything.processes.versions import check_vllm
from rlanything.rollout.collect import Batch, Collector
from rlanything.runs.folder import RunError, RunFolder
from rlanything.types import Group

if TYPE_CHECKING:
    from rlanything.cluster.cluster import Cluster


def use_devices(config: Config, roles: Sequence[Role]) -> None:
    """Hide the accelerators from torch, DeepSpeed and vLLM in this process where `num_device` is 0. Call it before they
    are used. Elsewhere a cluster's processes have them, and `Runtime` hides them from this one.

    Raises VersionError where vLLM is to serve one of `roles` and is built for other devices.
    """
    if any(config.engine.of(role).kind == "vllm" for role in roles):
        check_vllm(config.experiment.num_device > 0)
    if config.experiment.num_device == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def start_cluster(config: Config, folder: RunFolder, roles: Sequence[Role], learns: bool) -> Cluster | None:
    """The cluster's part of a run; None where one process is enough. Raises RunError where it was started on another
    number of nodes than it would use."""
    nodes = os.environ.get(JOB_NODES, str(config.experiment.num_node))
    if nodes != str(config.experiment.num_node):
        raise RunError(
            f"experiment.num_node={config.experiment.num_node}, but the job has {nodes} nodes: set it to {nodes}, or "
            "submit to as many"
        )
    if not needs_cluster(config):
        return None
    from rlanything.cluster.cluster import Cluster  # imported here: Ray takes seconds, and need not be installed

    return Cluster(config, folder, roles, learns)


class Serving:
    """The domain, and a model ready to be asked for each of `roles`. `close` ends their engines.

    Where one process is not enough, engines are replicas and episodes live in environment hosts of `cluster`.
    """

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        roles: Sequence[Role],
        splits: Sequence[str],
        cluster: Cluster | None = None,
    ) -> None:
        self.config = config
        self.num_thread = config.experiment.num_thread or len(os.sched_getaffinity(0))
        torch.set_num_threads(self.num_thread)
        self.domain = make_domain(config)
        self.domain.prepare(splits)
        self._closing = ExitStack()
        self._closing.callback(self.domain.close)
        self.models: dict[Role, ChatModel] = {}
        for role in roles:
            self.models[role] = cluster.chat_model(role) if cluster else self._chat_model(role, folder)
            self._closing.callback(self.models[role].engine.close)
        self._collector = (
            cluster.collector(self.models, splits)
            if cluster
            else Collector(self.domain, self.models["policy"], self.models.get("reward"), config.reward)
        )
        self._counted: dict[str, EngineStats] = {}
        self._cluster = cluster
        self._shares_devices = cluster is not None and cluster.placement.shares_devices
        self._asleep = False
        self._collecting = 0  # batches under way

    def _chat_model(self, role: Role, folder: RunFolder) -> ChatModel:
        model, engine = self.config.model.of(role), self.config.engine.of(role)
        return start_chat_model(model, engine, self.config.experiment.seed, folder.logs / f"engine_{role}.log")

    def sleep(self) -> None:
        """Give the memory of engines that share devices with learners to these; nothing where they do not."""
        if self._shares_devices and not self._asleep:
            self._asleep = True
            for model in self.models.values():
                model.engine.sleep()

    def wake(self, cache: bool = True) -> None:
        """Undo `sleep`; without `cache` engines take room for their weights alone, which learners can then send. Before
        the rest learners must have let go of their memory."""
        if self._asleep:
            self._asleep = not cache
            for model in self.models.values():
                model.engine.wake(cache)

    def clear_caches(self) -> None:
        """Have every engine forget all but its weights."""
        for model in self.models.values():
            model.engine.clear_caches()

    async def collect(self, batch: Batch, on_end: Callable[[], None]) -> list[Group]:
        """See `Collector.collect`."""
        with self._threads_while_generating():
            return await self._collector.collect(batch, on_end)

    @contextmanager
    def _threads_while_generating(self) -> Iterator[None]:
        """While engines generate, each of those in a process of its own has one core, and this process the others."""
        others = sum(self.config.engine.of(role).own_process for role in self.models)
        torch.set_num_threads(max(1, self.num_thread - others))
        self._collecting += 1
        try:
            yield
        finally:
            self._collecting -= 1
            if not self._collecting:
                torch.set_num_threads(self.num_thread)

    def figures(self) -> dict[str, float]:
        """Tokens and tokens per busy second of every engine since the last call; peak memory of this process and of
        those that engines run in [GiB]; of a cluster, the faults since the run began."""
        figures: dict[str, float] = {}
        for role, model in self.models.items():
            now, last = model.engine.stats(), self._counted.get(role, EngineStats())
            self._counted[role] = EngineStats(**vars(now))
            new = {name: max(0, value - getattr(last, name)) for name, value in vars(now).items()}  # 0: it died
            busy, generated = new["busy_s"], new["generated_tokens"]
            prompt, cached = new["prompt_tokens"], new["cached_prompt_tokens"]
            figures[f"engine/{role}_generated_tokens"] = generated
            figures[f"engine/{role}_tokens_per_s"] = generated / busy if busy else 0.0
            figures[f"engine/{role}_cached_share"] = cached / prompt if prompt else 0.0
            figures[f"engine/{role}_busy_s"] = busy
        if self._cluster:  # now: a replica that had died in this step is up again, and counted
            figures |= self._cluster.faults()
        figures["peak_memory_gb"] = peak_memory_gb() + sum(stats.own_memory_gb for stats in self._counted.values())
        return figures

    def close(self) -> None:
        """End all engines, whatever one of them raises."""
        self._closing.close()
