"""Supervised warm start: train a model on demonstrations until it can begin to learn by reinforcement.

`rlanything sft config=FILE.yaml [key=value ...]` trains one role's model on its domain's demonstrations, or on a file
of conversations. It stops when a measure on held-out tasks reaches its target: the policy's success, the reward model's
agreement with the truth (the mean of its shares of good and of bad steps that it knows), or the share of the rewriter's
proposals that are valid. If `output` was made from the same inputs, it does nothing.
"""

import asyncio
import hashlib
import inspect
import json
import os
import random
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from rlanything.algorithm.samples import sample_sets
from rlanything.config.schema import Config, ExperimentConfig, RolloutConfig
from rlanything.config.sft import SftConfig
from rlanything.conversations import encode, encode_file
from rlanything.domains.base import Domain, admitted, split_tasks
from rlanything.domains.parts import Conversation, RejectedTask, StepJudging, TestJudging
from rlanything.domains.registry import make_domain, resolve_options
from rlanything.domains.templates import load_templates
from rlanything.engines.base import request_seed
from rlanything.engines.chat import Chat
from rlanything.engines.chat_model import ChatModel, start_chat_model
from rlanything.errors import ConfigError, RunError
from rlanything.evaluation.play import evaluation_batch, evaluation_tasks, play
from rlanything.labelled import endless, labelled_episodes
from rlanything.learner.deepspeed import Learner
from rlanything.plan.models import check_role, check_tools
from rlanything.processes.coroutines import run_coroutine
from rlanything.processes.interrupts import raise_missed_interrupt
from rlanything.rollout.collect import Collector
from rlanything.runs.checkpoint import writing
from rlanything.runs.folder import check_place, locked, make_folder
from rlanything.runs.progress import Progress
from rlanything.types import Direction, Message, Sample, Task

SOURCES = (
    "sft.py",
    "labelled.py",
    "conversations.py",
    "rollout/*.py",
    "evaluation/play.py",
    "engines/*.py",
    "domains/**/*.py",
    "learner/*.py",
)
"""Code that determines the result."""


NOTE = "sft.json"  # in the output: what it was made from


def digest(config: SftConfig, domain: Domain) -> str:
    """A digest of everything that determines the result: settings, code, and the files of model and data."""
    hashed = hashlib.sha256(json.dumps(config.model_dump(exclude={"output", "num_thread"}), sort_keys=True).encode())
    sources = sorted(p for pattern in SOURCES for p in Path(__file__).parent.glob(pattern))
    for source in [*sources, *_own_sources(type(domain))]:
        hashed.update(source.read_bytes())
    files = sorted(p for p in Path(config.model.path).glob("*") if p.is_file())
    files += sorted(p for p in Path(config.policy.path or "no policy").glob("*") if p.is_file())
    files += sorted(Path(config.dataset.prompt).glob("*.jinja"))
    files += [Path(config.data)] if config.data else domain.data_files(config.dataset.train_split)
    for file in [*files, *domain.data_files(config.measure_split)]:
        hashed.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return hashed.hexdigest()


def _own_sources(domain: type) -> list[Path]:
    """The code of a user's domain and of what it is derived from: their files, or all files of their packages."""
    found = set[Path]()
    for kind in domain.__mro__:
        if kind.__module__.partition(".")[0] not in {*sys.stdlib_module_names, "rlanything"}:
            file, package = Path(inspect.getfile(kind)), sys.modules[kind.__module__].__package__
            found |= {*file.parent.glob("*.py")} if package else {file}
    return sorted(found)


def loop_config(config: SftConfig) -> Config:
    """The configuration of the rollouts that measure."""
    limits = config.model_dump(include={"max_interaction_step", "max_response_tokens"})
    limits["history"] = "paper" if "policy" in load_templates(config.dataset.prompt) else "append_only"
    output = Path(config.output)
    experiment = ExperimentConfig(name=f".{output.name}.sft", output_dir=str(output.parent), seed=config.seed)
    return Config(experiment=experiment, dataset=config.dataset, rollout=RolloutConfig(**limits))


class WarmStart:
    """One supervised training."""

    def __init__(self, config: SftConfig, domain: Domain, progress: Progress) -> None:
        self.config, self.domain, self.progress = config, domain, progress
        torch.set_num_threads(config.num_thread or len(os.sched_getaffinity(0)))
        chat = check_role(config.model, config.engine, learns=True)
        if config.role == "policy":
            check_tools({"policy": chat}, domain)
        logs, name = Path(config.output).parent / "logs", f"sft_{Path(config.output).name}"
        logs.mkdir(parents=True, exist_ok=True)
        self.held_out: Sequence[Conversation] = ()  # judgements of the policy's episodes, for the measure
        self.held_out_samples: Sequence[Sample] = ()  # of the file, for the loss
        self._admit()
        self.source = self._samples(chat, logs / f"{name}_policy.log")  # finds bad data before a model is loaded
        self.model = start_chat_model(config.model, config.engine, config.seed, logs / f"{name}_engine.log", chat)
        training = config.training.model_copy(update={"num_update": 1, "num_epoch": 1, "kl_beta": 0.0})
        log = logs / f"{name}_learner.log"
        self.learner = Learner(config.model, training, config.max_update, 1.0, config.seed, log)

    def _admit(self) -> None:
        """Try what demonstrations, the policy's episodes and the measure will play."""
        domain, config, say = self.domain, self.config, self.progress.line
        splits = [config.measure_split] if config.data else [config.dataset.train_split, config.measure_split]
        domain.prepare(splits)
        for split in splits:
            admitted(domain, partial(split_tasks, domain, split), say, variants=True)

    def _samples(self, chat: Chat, policy_log: Path) -> Iterator[Sample]:
        """The samples to learn, without an end. Bad data raises at once."""
        if self.config.data:
            return cycle(self._of_file(chat))
        sources: list[Iterator[Conversation]] = []
        if self.domain.demonstrating is not None or not self.config.policy.path:
            source = self.domain.demonstrations(self.config.role, self.config.dataset.train_split, self.config.seed)
            sources.append(chain([next(source)], source))
        if self.config.policy.path:
            sources.append(endless(self._played(chat, policy_log), self.config.seed))
        return (encode(chat, c) for c in chain.from_iterable(zip(*sources, strict=True)))

    def _played(self, chat: Chat, log: Path) -> list[list[Conversation]]:
        """Judgements of the policy's episodes on the training split. Those of the measure's split are `held_out`."""
        config = self.config
        policy_chat = check_role(config.policy, config.engine, learns=False)
        check_tools({"policy": policy_chat}, self.domain)
        policy = start_chat_model(config.policy, config.engine, config.seed, log, policy_chat)
        splits = ((config.dataset.train_split, config.num_episode), (config.measure_split, config.num_measure))
        with closing(policy.engine):
            train, held_out = (self._labelled(policy, chat, split, num) for split, num in splits)
        self.held_out = list(chain.from_iterable(held_out))
        return train

    def _labelled(self, policy: ChatModel, chat: Chat, split: str, num: int) -> list[list[Conversation]]:
        """Episodes of the policy as judgements, without those that are too long for the reward model."""
        loop, limit = loop_config(self.config), self.config.engine.max_model_len
        episodes = run_coroutine(labelled_episodes(self.domain, policy, loop, split, num, self.progress))
        kept = [[c for c in steps if len(encode(chat, c).ids) <= limit] for steps in episodes]
        kept = [steps for steps in kept if steps]
        if not kept:
            raise ConfigError(
                f"engine.max_model_len={limit}: every labelled step of the policy's episodes on split {split} is "
                "longer; raise it"
            )
        num_step = sum(map(len, episodes))
        num_long = num_step - sum(map(len, kept))
        too_long = f", {num_long:,} too long for engine.max_model_len={limit}" if num_long else ""
        self.progress.line(
            f"warm start {self.config.role}: a policy's {len(episodes):,} episodes of split {split} have {num_step:,} "
            f"labelled steps{too_long}"
        )
        return kept

    def _of_file(self, chat: Chat) -> list[Sample]:
        config = self.config
        samples = encode_file(Path(config.data), chat)
        samples = self._short_enough(samples)
        lengths = [len(s.ids) for s in samples]
        self.progress.line(
            f"warm start {config.role}: {len(samples):,} conversations of {config.data}, {sum(lengths):,} tokens, the "
            f"longest {max(lengths):,}"
        )
        if config.num_held_out >= len(samples):
            raise ConfigError(
                f"num_held_out={config.num_held_out}: that leaves none of the {len(samples)} conversations of "
                f"{config.data} to learn; lower it"
            )
        held_out = {*random.Random(config.seed).sample(range(len(samples)), config.num_held_out)}
        self.held_out_samples = [samples[i] for i in sorted(held_out)]
        return [sample for i, sample in enumerate(samples) if i not in held_out]

    def _short_enough(self, samples: list[Sample]) -> list[Sample]:
        """The samples of at most `max_tokens`. Raises ConfigError if there is none."""
        config = self.config
        kept = [s for s in samples if not config.max_tokens or len(s.ids) <= config.max_tokens]
        if not kept:
            raise ConfigError(
                f"max_tokens={config.max_tokens}: each of the {len(samples)} conversations of {config.data} is longer"
            )
        if num := len(samples) - len(kept):
            self.progress.line(f"{num} conversations of more than {config.max_tokens} tokens are left out")
        return kept

    def run(self) -> float:
        """Train until the target or `max_update`; returns the last measure."""
        config = self.config
        result, started = 0.0, time.perf_counter()
        with self.progress.phase(f"warm start {config.role}", config.max_update) as bar:
            for update in range(1, config.max_update + 1):
                raise_missed_interrupt()
                loss = self.learner.update_supervised(sample_sets(list(islice(self.source, config.batch))))["loss"]
                bar.advance()
                bar.note(f"loss {loss:.3f}")
                due = update >= config.measure_from and update % config.measure_every == 0
                if due or update == config.max_update:
                    name, result = self.measure()
                    losses = f"loss {loss:.3f}"
                    if self.held_out_samples:
                        losses += f" (held out {self.learner.supervised_loss(self.held_out_samples):.3f})"
                    self.progress.line(
                        f"warm start {config.role}: update {update}, {losses}, {name} {result:.1%}, "
                        f"{time.perf_counter() - started:.0f} s"
                    )
                    if result >= config.target:
                        break
        return result

    def measure(self) -> tuple[str, float]:
        """The name of the role's measure, and its value on held-out tasks under the present weights."""
        self.model.engine.load_weights(self.learner.num_updates, self.learner.weights())
        name, measure = {
            "policy": ("success", self._policy_success),
            "reward": ("agreement with the truth", self._reward_agreement),
            "rewriter": ("valid proposals", self._rewriter_validity),
        }[self.config.role]
        return name, asyncio.run(measure())

    async def _policy_success(self) -> float:
        config = loop_config(self.config)
        batch = evaluation_batch(self._tasks(), config, judged=False)
        collector = Collector(self.domain, self.model, None, config)
        with self.progress.phase("measure", len(batch.tasks) * batch.num) as bar:
            groups = await play(batch, collector.collect, bar.advance)
        return sum(g.num_solved for g in groups) / (len(batch.tasks) * batch.num)

    async def _answers(self, conversations: Sequence[Sequence[Message]]) -> list[str]:
        """A sampled answer to each conversation."""

        async def answer(i: int, messages: Sequence[Message]) -> str:
            limit, seed = self.config.max_response_tokens, request_seed(i)
            _, [reply] = await self.model.ask(messages, temperature=1.0, max_tokens=limit, seed=seed)
            return reply.text

        return list(await asyncio.gather(*(answer(i, c) for i, c in enumerate(conversations))))

    async def _reward_agreement(self) -> float:
        match self.domain.judging:
            case StepJudging() as judging:
                return await self._right_scores(judging)
            case TestJudging() as judging:
                return await self._right_tests(judging)
        raise ConfigError(f"role: found reward, but dataset.domain={self.config.dataset.domain} has no judging")

    async def _right_scores(self, judging: StepJudging) -> float:
        """How many steps get the score of the judgement that is taught: the mean of the shares of good and of bad ones.

        The share of all would be high for a judge that calls everything bad, where most steps are. The steps are the
        policy's, or demonstrated ones if none plays.
        """
        conversations = list(self.held_out)
        if not conversations:
            held_out = self.domain.demonstrations("reward", self.config.measure_split, self.config.seed + 1)
            conversations = list(islice(held_out, self.config.num_measure * self.config.max_interaction_step))
        answers = await self._answers([c.messages[:-1] for c in conversations])
        truths = [judging.parse(c.messages[-1]["content"], c.judged)[0] for c in conversations]
        found = [judging.parse(a, c.judged)[0] for a, c in zip(answers, conversations, strict=True)]
        right: dict[int | None, list[bool]] = defaultdict(list)
        for score, truth in zip(found, truths, strict=True):
            right[truth].append(score == truth)
        return fmean(fmean(of_one) for of_one in right.values())

    async def _right_tests(self, judging: TestJudging) -> float:
        """The share of unit tests that the tasks' reference programs pass."""
        tasks = self._tasks()
        answers = await self._answers([judging.asked(t) for t in tasks])

        async def right(task: Task, answer: str) -> bool:
            test, program = judging.parse(answer, task)[0], judging.reference(task)
            return test is not None and program is not None and await judging.passes(task, program, test) == 1

        found = await asyncio.gather(*(right(t, a) for t, a in zip(tasks, answers, strict=True)))
        return sum(found) / len(tasks)

    async def _rewriter_validity(self) -> float:
        rewriting = self.domain.rewriting
        if rewriting is None:
            raise ConfigError(f"role: found rewriter, but dataset.domain={self.config.dataset.domain} has no rewriting")
        directions = [(Direction.HARDER, 1.0), (Direction.EASIER, 0.0)]
        asked = [(t, *directions[i % 2]) for i, t in enumerate(self._tasks())]
        answers = await self._answers([rewriting.asked(t, d, a, "") for t, d, a in asked])

        async def valid(task: Task, direction: Direction, answer: str) -> bool:
            with suppress(RejectedTask):
                await rewriting.prove(rewriting.parse(answer, task, direction, "measure"))
                return True
            return False

        found = await asyncio.gather(*(valid(t, d, text) for (t, d, _), text in zip(asked, answers, strict=True)))
        return sum(found) / len(asked)

    def _tasks(self) -> list[Task]:
        return evaluation_tasks(self.domain, self.config.measure_split, self.config.num_measure)


def check_output(config: SftConfig) -> None:
    """Raise RunError if `output` cannot be made, or holds what is no warm start's and would be lost."""
    output, key = Path(config.output), f"output={config.output}"
    check_place(output, key)
    if output.is_dir() and any(output.iterdir()) and not (output / NOTE).is_file():
        raise RunError(f"{key}: holds files that no warm start made, and would be replaced; choose another output")
    if output.resolve() in (Path(config.model.path).resolve(), *Path(config.model.path).resolve().parents):
        raise RunError(f"{key}: holds the model that the warm start begins with; choose another output")


def warm_start(config: SftConfig, progress: Progress) -> None:
    """Train and export, unless `output` was made from the same inputs.

    Raises RunError if another process is making it, and as `check_output` does.
    """
    resolve_options(config.dataset)  # the digest includes them
    check_output(config)
    domain = make_domain(loop_config(config))
    output = Path(config.output)
    key, file = digest(config, domain), output / NOTE
    scratch = domain.images.folder.parent  # the demonstrations' screenshots
    refusal = f"output={output}: another process is making it; wait for it or choose another output"
    make_folder(output.parent, f"output={output}")
    with locked(output.with_name(f".{output.name}.lock"), refusal):
        note: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
        if note.get("digest") == key:
            progress.line(f"warm start {config.role}: {config.output} is up to date ({note['measure']:.1%})")
            return
        try:
            training = WarmStart(config, domain, progress)
            with closing(domain), closing(training.model.engine):
                result = training.run()
                made = output.with_name(f"{output.name}.new")
                with writing(output, made), writing(output, made.with_name(f"{made.name}.part")):
                    training.learner.export(made)
                    told = {"digest": key, "measure": result, "updates": training.learner.num_updates}
                    (made / NOTE).write_text(json.dumps(told))
                    shutil.rmtree(output, ignore_errors=True)
                    made.rename(output)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
