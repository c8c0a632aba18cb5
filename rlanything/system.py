"""The parts of a run, put together from its configuration: domain, engines with their chats, learners."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from rlanything.chat import ChatModel, start_chat_model
from rlanything.config import Config, EngineConfig, ExperimentConfig, LearnerConfig, ModelConfig
from rlanything.domains.registry import make_domain
from rlanything.engines.base import EngineStats, peak_memory_gb
from rlanything.learner.deepspeed import Learner
from rlanything.runs.folder import RunError, RunFolder
from rlanything.types import Task


def use_devices(experiment: ExperimentConfig) -> None:
    """Hide the accelerators from torch, DeepSpeed and vLLM where `num_device` is 0; call it before they are used.

    Raises RunError where the run asks for more than this version or this machine has.
    """
    if experiment.num_node > 1 or experiment.num_device > 1:
        raise RunError(
            f"experiment.num_node={experiment.num_node}, num_device={experiment.num_device}: this version runs on one "
            "machine with at most one accelerator; set both to 1 (or num_device=0 for the CPU), or use dry_run=true "
            "to see the plan"
        )
    if experiment.num_device == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        raise RunError(
            "experiment.num_device=1: torch finds no accelerator here; install requirements.txt on a GPU machine, or "
            "set experiment.num_device=0 for the CPU"
        )


class System:
    """Everything that costs time to start. `close` ends all of it."""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        self.config, self.folder = config, folder
        self.num_thread = config.experiment.num_thread or os.cpu_count() or 1
        torch.set_num_threads(self.num_thread)
        self.domain = make_domain(config)
        for split in (config.dataset.train_split, *config.evaluation.splits):
            self.domain.tasks(split)  # a missing one is found before the models are loaded
        judged = config.reward.num_evaluation > 0
        self.policy = self._chat_model("policy", config.model.policy, config.engine.policy)
        self.reward = self._chat_model("reward", config.model.reward, config.engine.reward) if judged else None
        adapts = config.adaptation.enabled
        self.rewriter = self._chat_model("rewriter", config.model.rewriter, config.engine.rewriter) if adapts else None
        training, rollout = config.training, config.rollout
        self.policy_learner = self._learner(config.model.policy, training.policy, rollout.temperature)
        self.reward_learner = (
            self._learner(config.model.reward, training.reward, config.reward.temperature) if judged else None
        )
        self._counted: dict[str, EngineStats] = {}

    def training_tasks(self) -> list[Task]:
        """The originals to train on, drawn with the seed where `dataset.num_task` limits them."""
        config = self.config
        tasks = sorted(self.domain.tasks(config.dataset.train_split), key=lambda t: t.id)
        if config.dataset.num_task:
            tasks = random.Random(f"{config.experiment.seed}/tasks").sample(
                tasks, min(config.dataset.num_task, len(tasks))
            )
        return tasks

    @contextmanager
    def generating(self) -> Iterator[None]:
        """While engines generate, each of those in a process of its own has one core, and this process the others."""
        engines = self.config.engine
        others = sum(
            model is not None and config.own_process
            for model, config in ((self.reward, engines.reward), (self.rewriter, engines.rewriter))
        )
        torch.set_num_threads(max(1, self.num_thread - others))
        try:
            yield
        finally:
            torch.set_num_threads(self.num_thread)

    def sync_weights(self, version: int) -> None:
        """Put the learners' weights into the engines, in place, and compare checksums on both sides."""
        for role, model, learner in (
            ("policy", self.policy, self.policy_learner),
            ("reward", self.reward, self.reward_learner),
        ):
            if model is None or learner is None:
                continue
            model.engine.load_weights(version, learner.weights())
            ours, theirs = learner.checksum(model.engine.dtype), model.engine.checksum()
            if ours != theirs:
                raise RunError(
                    f"weights of the {role} engine differ from the learner's after the transfer: {theirs} != {ours}"
                )

    def engine_figures(self) -> dict[str, float]:
        """Tokens and tokens per busy second of every engine since the last call; peak memory of this process and of
        those that engines run in, and of the accelerator [GiB]."""
        figures: dict[str, float] = {}
        for role, model in (("policy", self.policy), ("reward", self.reward), ("rewriter", self.rewriter)):
            if model is None:
                continue
            now, last = model.engine.stats(), self._counted.get(role, EngineStats())
            self._counted[role] = EngineStats(**vars(now))
            busy, generated = now.busy_s - last.busy_s, now.generated_tokens - last.generated_tokens
            prompt, cached = (
                now.prompt_tokens - last.prompt_tokens,
                now.cached_prompt_tokens - last.cached_prompt_tokens,
            )
            figures[f"engine/{role}_generated_tokens"] = generated
            figures[f"engine/{role}_tokens_per_s"] = generated / busy if busy else 0.0
            figures[f"engine/{role}_cached_share"] = cached / prompt if prompt else 0.0
            figures[f"engine/{role}_busy_s"] = busy
        figures["peak_memory_gb"] = peak_memory_gb() + sum(stats.own_memory_gb for stats in self._counted.values())
        if torch.cuda.is_available():
            figures["peak_gpu_memory_gb"] = torch.cuda.max_memory_reserved() / 2**30
        return figures

    def close(self) -> None:
        """End all engines, whatever one of them raises, then release the learners' memory."""
        with ExitStack() as stack:
            for learner in (self.policy_learner, self.reward_learner):
                if learner is not None:
                    stack.callback(learner.close)
            for model in (self.policy, self.reward, self.rewriter):
                if model is not None:
                    stack.callback(model.engine.close)

    def _chat_model(self, role: str, model: ModelConfig, engine: EngineConfig) -> ChatModel:
        log = self.folder.logs / f"engine_{role}.log"
        return start_chat_model(model, engine, self.config.experiment.seed, log)

    def _learner(self, model: ModelConfig, config: LearnerConfig, temperature: float) -> Learner:
        total = self.config.experiment.total_step * config.num_update * config.num_epoch
        log = self.folder.logs / "learners.log"  # DeepSpeed has one log for a process
        return Learner(model, config, total, temperature, self.config.experiment.seed, log)
