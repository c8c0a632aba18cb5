"""Supervised warm start: demonstrations in, a model that can begin to learn by reinforcement out.

`python -m rlanything.sft config=FILE.yaml [key=value ...]` trains one role's model on its domain's demonstrations
(or on a file of conversations), and stops where a measure on tasks that it never saw reaches its target: success of
the policy, agreement of the reward model with the planner's labels, share of valid proposals of the rewriter.
The result is cached: nothing is done where `output` was made from the very same inputs.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from omegaconf import MISSING

from rlanything.chat import Chat, ChatModel
from rlanything.cli import run_guarded
from rlanything.config import (
    Config,
    ConfigError,
    DatasetConfig,
    EngineConfig,
    LearnerConfig,
    ModelConfig,
    RolloutConfig,
    load_as,
)
from rlanything.domains.base import Conversation, Domain, RejectedTask
from rlanything.domains.registry import make_domain
from rlanything.engines import make_engine
from rlanything.engines.base import SamplingParams
from rlanything.evaluate import evaluation_tasks, run_evaluation
from rlanything.learner.deepspeed import Learner
from rlanything.rollout import request_seed
from rlanything.runs.progress import Progress
from rlanything.types import Direction, Sample

SOURCES = ("sft.py", "chat.py", "domains/**/*.py", "learner/*.py")  # code that the result depends on, below the package


@dataclass
class SftConfig:
    role: str = MISSING  # policy | reward | rewriter
    model: ModelConfig = field(default_factory=ModelConfig)  # what to start from
    output: str = MISSING  # folder of the trained model (Hugging Face format)
    seed: int = 0
    data: str = ""  # a .jsonl of {"messages": [...]}: every assistant message is learned; "": demonstrations
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    measure_split: str = "eval_in_distribution"
    num_measure: int = 64  # tasks that the measure is taken on
    max_interaction_step: int = 20
    max_response_tokens: int = 32
    batch: int = 32  # demonstrations an update
    max_update: int = 1000  # optimizer steps; the learning-rate schedule spans them
    measure_every: int = 100  # updates between measurements
    measure_from: int = 0  # the first update that is measured: a policy that solves nothing yet plays every turn
    target: float = 1.0  # stop where the measure reaches it
    engine: EngineConfig = field(default_factory=EngineConfig)  # for the measurements
    training: LearnerConfig = field(default_factory=LearnerConfig)
    num_thread: int = 0


def encode(chat: Chat, conversation: Conversation) -> Sample:
    """A conversation as one sample, token for token what a rollout of it would have been."""
    messages = conversation.messages
    first = next(i for i, m in enumerate(messages) if m["role"] == "assistant")
    ids = list(chat.prompt(messages[:first]))
    weights = [0.0] * len(ids)
    for i in range(first, len(messages), 2):
        if i > first:
            tail = chat.follow_up(messages[i - 1], stopped=True)
            ids += tail
            weights += [0.0] * len(tail)
        response = [*chat.encode(messages[i]["content"]), chat.eos_id]
        ids += response
        weights += [float(conversation.trained[i])] * len(response)
    zeros = np.zeros(len(ids), np.float32)
    return Sample(np.asarray(ids, np.int64), np.asarray(weights, np.float32), zeros, zeros, conversation.key)


def read_conversations(path: Path) -> Iterator[Conversation]:
    """The conversations of a .jsonl, over and over. Raises ConfigError naming the line."""
    if not path.is_file():
        raise ConfigError(f"data={path}: there is no such file")
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            messages = json.loads(line)["messages"]
            trained = [m["role"] == "assistant" for m in messages]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f'data={path}, line {number}: expected {{"messages": [...]}} ({error!r})') from error
        if not any(trained):
            raise ConfigError(f"data={path}, line {number}: holds no assistant message to learn")
        found.append(Conversation(messages, trained))
    while True:
        yield from found


def digest(config: SftConfig) -> str:
    """A digest of all that the result depends on: settings, code, the model's files, the data's files."""
    hashed = hashlib.sha256(json.dumps(asdict(replace(config, output="", num_thread=0)), sort_keys=True).encode())
    for source in sorted(p for pattern in SOURCES for p in Path(__file__).parent.glob(pattern)):
        hashed.update(source.read_bytes())
    folders = [Path(config.model.path), Path(config.data) if config.data else Path(config.dataset.path)]
    for folder in folders:
        files = [folder] if folder.is_file() else sorted(p for p in folder.glob("*") if p.is_file())
        for file in files:
            hashed.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return hashed.hexdigest()


class WarmStart:
    """One supervised training."""

    def __init__(self, config: SftConfig, progress: Progress) -> None:
        self.config, self.progress = config, progress
        torch.set_num_threads(config.num_thread or os.cpu_count() or 1)
        self.domain: Domain = make_domain(self._loop_config())
        self.chat = Chat(config.model)
        logs = Path(config.output).parent / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        name = Path(config.output).name
        engine = make_engine(config.model, config.engine, config.seed, logs / f"sft_{name}_engine.log")
        self.measured = ChatModel(engine, self.chat)
        training = replace(config.training, num_update=1, num_epoch=1)
        self.learner = Learner(
            config.model, training, config.max_update, 1.0, config.seed, logs / f"sft_{name}_learner.log"
        )

    def _loop_config(self) -> Config:
        config = Config(dataset=self.config.dataset)
        config.experiment.name, config.experiment.seed = f"sft_{self.config.role}", self.config.seed
        config.rollout = RolloutConfig(
            max_interaction_step=self.config.max_interaction_step, max_response_tokens=self.config.max_response_tokens
        )
        return config

    def run(self) -> float:
        """Train until the target or `max_update`; returns the last measure."""
        config = self.config
        train = config.dataset.train_split
        source = (
            read_conversations(Path(config.data))
            if config.data
            else self.domain.demonstrations(config.role, train, config.seed)
        )
        result, started = 0.0, time.perf_counter()
        with self.progress.phase(f"warm start {config.role}", config.max_update) as bar:
            for update in range(1, config.max_update + 1):
                samples = [encode(self.chat, c) for c in islice(source, config.batch)]
                metrics = self.learner.update_supervised(samples)
                bar.advance()
                bar.note(f"loss {metrics['loss']:.3f}")
                due = update >= config.measure_from and update % config.measure_every == 0
                if due or update == config.max_update:
                    result = self.measure()
                    self.progress.line(
                        f"warm start {config.role}: update {update}, loss {metrics['loss']:.3f}, "
                        f"{_MEASURES[config.role]} {result:.1%}, "
                        f"{time.perf_counter() - started:.0f} s"
                    )
                    if result >= config.target:
                        break
        return result

    def measure(self) -> float:
        """What the model can do now, on held-out tasks."""
        self.measured.engine.load_weights(self.learner.num_updates, self.learner.weights())
        return asyncio.run(getattr(self, f"_measure_{self.config.role}")())

    async def _measure_policy(self) -> float:
        config = self._loop_config()
        tasks = evaluation_tasks(self.domain, self.config.measure_split, self.config.num_measure, self.config.seed)
        groups = await run_evaluation(tasks, self.domain, self.measured, None, config, self.progress, "measure")
        return sum(t.success for g in groups for t in g.trajectories) / len(groups)

    async def _answers(self, conversations: list[Conversation]) -> list[str]:
        """The model's sampled answer in the place of each conversation's last message."""

        async def answer(i: int, conversation: Conversation) -> str:
            sampling = SamplingParams(
                1.0, self.config.max_response_tokens, stop_token_ids=(self.chat.eos_id,), seed=request_seed(i)
            )
            [c] = await self.measured.engine.generate(self.chat.prompt(conversation.messages[:-1]), sampling)
            return self.chat.decode(c.token_ids)

        return list(await asyncio.gather(*(answer(i, c) for i, c in enumerate(conversations))))

    async def _measure_reward(self) -> float:
        held_out = self.domain.demonstrations("reward", self.config.measure_split, self.config.seed + 1)
        conversations = list(islice(held_out, self.config.num_measure * self.config.max_interaction_step))
        answers = await self._answers(conversations)
        parse = self.domain.parse_score
        truths = [parse(c.messages[-1]["content"])[0] for c in conversations]
        return sum(parse(a)[0] == t for a, t in zip(answers, truths, strict=True)) / len(truths)

    async def _measure_rewriter(self) -> float:
        tasks = evaluation_tasks(self.domain, self.config.measure_split, self.config.num_measure, self.config.seed)
        directions = [(Direction.HARDER, 1.0), (Direction.EASIER, 0.0)]
        asked = [(t, *directions[i % 2]) for i, t in enumerate(tasks)]
        conversations = [Conversation([*self.domain.rewrite_messages(t, d, a, ""), {}], []) for t, d, a in asked]
        valid = 0
        for (task, direction, _), answer in zip(asked, await self._answers(conversations), strict=True):
            try:
                self.domain.settle_task(self.domain.parse_task(answer, task, direction, "measure"), accepted=False)
                valid += 1
            except RejectedTask:
                pass
        return valid / len(tasks)


_MEASURES = {"policy": "success", "reward": "agreement with labels", "rewriter": "valid proposals"}


def warm_start(config: SftConfig, progress: Progress) -> None:
    """Train and export, unless `output` was made from the same inputs."""
    if config.role not in _MEASURES:
        raise ConfigError(f"role: found {config.role!r}, expected one of {', '.join(_MEASURES)}")
    key, note = digest(config), Path(config.output) / "sft.json"
    if note.is_file() and json.loads(note.read_text())["digest"] == key:
        progress.line(
            f"warm start {config.role}: {config.output} is up to date ({json.loads(note.read_text())['measure']:.1%})"
        )
        return
    training = WarmStart(config, progress)
    result = training.run()
    training.learner.export(Path(config.output))
    note.write_text(json.dumps({"digest": key, "measure": result, "updates": training.learner.num_updates}))


if __name__ == "__main__":
    run_guarded(lambda: warm_start(load_as(SftConfig, sys.argv[1:]), Progress()), "starts this training anew")
