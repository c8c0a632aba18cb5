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
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch
from omegaconf import MISSING

from rlanything.config.load import load_as
from rlanything.config.rules import POSITIVE, check_choices, check_numbers
from rlanything.config.schema import (
    Config,
    ConfigError,
    DatasetConfig,
    EngineConfig,
    ExperimentConfig,
    LearnerConfig,
    ModelConfig,
    RolloutConfig,
)
from rlanything.domains.base import Conversation, Domain, JudgedDomain, ProgramDomain, RejectedTask
from rlanything.domains.registry import make_domain
from rlanything.engines.base import SamplingParams
from rlanything.engines.chat import Chat, start_chat_model
from rlanything.evaluation.figures import evaluation_tasks, run_evaluation
from rlanything.learner.deepspeed import Learner
from rlanything.processes.guard import run_guarded
from rlanything.processes.interrupts import raise_missed_interrupt
from rlanything.rollout.collect import Collector
from rlanything.rollout.episode import request_seed
from rlanything.runs.checkpoint import writing
from rlanything.runs.progress import Progress
from rlanything.types import Direction, Sample, Task

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
            tail = chat.follow_up(messages[i - 1])
            ids += tail
            weights += [0.0] * len(tail)
        response = [*chat.encode(messages[i]["content"]), chat.eos_id]
        ids += response
        weights += [float(conversation.trained[i])] * len(response)
    zeros = np.zeros(len(ids), np.float32)
    return Sample(np.asarray(ids, np.int64), np.asarray(weights, np.float32), zeros, zeros, conversation.key)


def read_conversations(path: Path) -> Iterator[Conversation]:
    """The conversations of a .jsonl, over and over. Raises ConfigError naming the line."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            messages = json.loads(line)["messages"]
            roles = [m["role"] for m in messages]
            texts = [m["content"] for m in messages]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f'data={path}, line {number}: expected {{"messages": [...]}} ({error!r})') from error
        turns = roles[1:] if roles[:1] == ["system"] else roles
        if (
            not turns
            or turns != ["user", "assistant"] * (len(turns) // 2)
            or not all(isinstance(t, str) for t in texts)
        ):
            raise ConfigError(
                f"data={path}, line {number}: expected user and assistant in turns, the assistant last, after at most "
                f"one system message, each with text; found {', '.join(map(str, roles)) or 'no message'}"
            )
        found.append(Conversation(messages, [role == "assistant" for role in roles]))
    if not found:
        raise ConfigError(f"data={path}: holds no conversation")
    while True:
        yield from found


def digest(config: SftConfig, domain: Domain) -> str:
    """A digest of all that the result depends on: settings, code, the files of model, games and conversations."""
    hashed = hashlib.sha256(json.dumps(asdict(replace(config, output="", num_thread=0)), sort_keys=True).encode())
    for source in sorted(p for pattern in SOURCES for p in Path(__file__).parent.glob(pattern)):
        hashed.update(source.read_bytes())
    files = sorted(p for p in Path(config.model.path).glob("*") if p.is_file())
    files += [Path(config.data)] if config.data else domain.data_files(config.dataset.train_split)
    for file in [*files, *domain.data_files(config.measure_split)]:
        hashed.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return hashed.hexdigest()


def loop_config(config: SftConfig) -> Config:
    """The configuration of the loop's parts that measure."""
    rollout = RolloutConfig(
        max_interaction_step=config.max_interaction_step, max_response_tokens=config.max_response_tokens
    )
    experiment = ExperimentConfig(name=f"sft_{config.role}", seed=config.seed)
    return Config(experiment=experiment, dataset=config.dataset, rollout=rollout)


def validate_sft(config: SftConfig) -> None:
    """Check what types cannot say. Raises ConfigError naming the key."""

    def own(pattern: str) -> list[str]:
        key = pattern.replace("{role}.", "").replace("{learner}.", "")
        return [key] if key.startswith(("dataset.", "engine.", "training.")) or "." not in key else []

    if config.role not in _MEASURES:
        raise ConfigError(f"role: found {config.role!r}, expected one of {', '.join(_MEASURES)}")
    if config.data and not Path(config.data).is_file():
        raise ConfigError(f"data={config.data}: there is no such file")
    check_choices(config, own)
    check_numbers(config, own, positive=(*_POSITIVE, *POSITIVE))


class WarmStart:
    """One supervised training."""

    def __init__(self, config: SftConfig, domain: Domain, progress: Progress) -> None:
        self.config, self.domain, self.progress = config, domain, progress
        torch.set_num_threads(config.num_thread or len(os.sched_getaffinity(0)))
        source = read_conversations(Path(config.data)) if config.data else None
        self.source = source or domain.demonstrations(config.role, config.dataset.train_split, config.seed)
        self.first = next(self.source)  # bad data is found before a model is loaded
        logs = Path(config.output).parent / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        name = Path(config.output).name
        self.measured = start_chat_model(config.model, config.engine, config.seed, logs / f"sft_{name}_engine.log")
        training = replace(config.training, num_update=1, num_epoch=1, kl_beta=0.0)
        self.learner = Learner(
            config.model, training, config.max_update, 1.0, config.seed, logs / f"sft_{name}_learner.log"
        )

    def run(self) -> float:
        """Train until the target or `max_update`; returns the last measure."""
        config, source = self.config, chain([self.first], self.source)
        result, started = 0.0, time.perf_counter()
        with self.progress.phase(f"warm start {config.role}", config.max_update) as bar:
            for update in range(1, config.max_update + 1):
                raise_missed_interrupt()
                samples = [encode(self.measured.chat, c) for c in islice(source, config.batch)]
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
        config = loop_config(self.config)
        tasks = evaluation_tasks(self.domain, self.config.measure_split, self.config.num_measure, self.config.seed)
        collector = Collector(self.domain, self.measured, None, config.reward)
        groups = await run_evaluation(tasks, collector.collect, config, self.progress, "measure", judged=False)
        return sum(t.success for g in groups for t in g.trajectories) / len(groups)

    async def _answers(self, conversations: list[Conversation]) -> list[str]:
        """The model's sampled answer in the place of each conversation's last message."""

        async def answer(i: int, conversation: Conversation) -> str:
            sampling = SamplingParams(
                1.0, self.config.max_response_tokens, stop_token_ids=(self.measured.chat.eos_id,), seed=request_seed(i)
            )
            _, [c] = await self.measured.ask(conversation.messages[:-1], sampling)
            return self.measured.chat.decode(c.token_ids)

        return list(await asyncio.gather(*(answer(i, c) for i, c in enumerate(conversations))))

    async def _measure_reward(self) -> float:
        if isinstance(self.domain, ProgramDomain):
            return await self._measure_tests(self.domain)
        assert isinstance(self.domain, JudgedDomain)
        held_out = self.domain.demonstrations("reward", self.config.measure_split, self.config.seed + 1)
        conversations = list(islice(held_out, self.config.num_measure * self.config.max_interaction_step))
        answers = await self._answers(conversations)
        parse = self.domain.parse_score
        truths = [parse(c.messages[-1]["content"])[0] for c in conversations]
        return sum(parse(a)[0] == t for a, t in zip(answers, truths, strict=True)) / len(truths)

    async def _measure_tests(self, domain: ProgramDomain) -> float:
        tasks = evaluation_tasks(domain, self.config.measure_split, self.config.num_measure, self.config.seed)
        answers = await self._answers([Conversation([*domain.test_messages(t), {}], []) for t in tasks])

        async def right(task: Task, answer: str) -> bool:
            test, program = domain.parse_test(answer, task)[0], domain.reference(task)
            return test is not None and program is not None and await domain.passes(task, program, test) == 1

        found = await asyncio.gather(*(right(t, a) for t, a in zip(tasks, answers, strict=True)))
        return sum(found) / len(tasks)

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


_POSITIVE = ("num_measure", "max_interaction_step", "max_response_tokens", "batch", "max_update", "measure_every")
_MEASURES = {"policy": "success", "reward": "agreement with the truth", "rewriter": "valid proposals"}


def warm_start(config: SftConfig, progress: Progress) -> None:
    """Train and export, unless `output` was made from the same inputs."""
    validate_sft(config)
    domain = make_domain(loop_config(config))
    output = Path(config.output)
    key, note = digest(config, domain), output / "sft.json"
    if note.is_file() and json.loads(note.read_text())["digest"] == key:
        progress.line(
            f"warm start {config.role}: {config.output} is up to date ({json.loads(note.read_text())['measure']:.1%})"
        )
        return
    training = WarmStart(config, domain, progress)
    with closing(domain), closing(training.measured.engine):
        result = training.run()
        with writing(output, output.with_name(output.name + ".part")):
            training.learner.export(output)
            note.write_text(json.dumps({"digest": key, "measure": result, "updates": training.learner.num_updates}))


if __name__ == "__main__":
    run_guarded(lambda: warm_start(load_as(SftConfig, sys.argv[1:]), Progress()), "starts this training anew")
