"""Measure one policy on benchmark splits: what `alfworld_eval.py` calls. A run that was cut off goes on."""

from __future__ import annotations

import asyncio
import math
import os
from contextlib import closing
from pathlib import Path

import torch

from rlanything.chat import Chat, ChatModel
from rlanything.config import Config
from rlanything.domains.base import Domain
from rlanything.domains.registry import make_domain
from rlanything.engines import make_engine
from rlanything.evaluate import evaluation_tasks, run_evaluation, summarise
from rlanything.runs.folder import RunFolder
from rlanything.runs.metrics import Metrics
from rlanything.runs.progress import Progress
from rlanything.runs.store import read_groups, write_groups
from rlanything.types import Group

CHUNK = 64  # tasks between two savings: what a run that dies can lose


def benchmark(config: Config) -> None:
    """Evaluate `model.policy` on `evaluation.splits`; a table, metrics.jsonl, and one parquet of episodes a split."""
    progress = Progress()
    folder = RunFolder(config)
    with closing(folder):
        folder.open(config)
        _run(config, folder, progress)


def _run(config: Config, folder: RunFolder, progress: Progress) -> None:
    torch.set_num_threads(config.experiment.num_thread or os.cpu_count() or 1)
    domain = make_domain(config)
    engine = make_engine(
        config.model.policy, config.engine.policy, config.experiment.seed, folder.logs / "engine_policy.log"
    )
    policy = ChatModel(engine, Chat(config.model.policy))
    metrics = Metrics(folder.metrics, config)
    rows = []
    try:
        for split in config.evaluation.splits:
            groups = evaluate_split(split, domain, policy, config, folder, progress)
            write_groups(folder.evaluation(0, split), groups, domain.describe, domain.kind)
            figures = summarise(groups, domain)
            metrics.write(0, "eval", {"split": split, **figures})
            rows += table_rows(split, figures)
    finally:
        engine.close()
        metrics.close()
    progress.table(
        str(config.model.policy.path), ["split", "episodes", "success", "95 %", "turns", "invalid", "tokens"], rows
    )
    progress.line(f"episodes: {folder.path / 'evaluations'}")


def evaluate_split(
    split: str, domain: Domain, policy: ChatModel, config: Config, folder: RunFolder, progress: Progress
) -> list[Group]:
    """All groups of a split; those of an earlier, unfinished call are read and not played again."""
    tasks = evaluation_tasks(domain, split, config.evaluation.num_task, config.experiment.seed)
    by_id = {t.id: t for t in tasks}
    groups: list[Group] = []
    for start in range(0, len(tasks), CHUNK):
        part = part_path(folder.path, split, start)
        if part.exists():
            groups += read_groups(part, by_id)
            continue
        chunk = tasks[start : start + CHUNK]
        label = f"{split} {start}/{len(tasks)}"
        played = asyncio.run(run_evaluation(chunk, domain, policy, None, config, progress, label))
        write_groups(part, played, domain.describe, domain.kind)
        groups += played
    return groups


def part_path(run: Path, split: str, start: int) -> Path:
    """Where a chunk's episodes wait until the split is complete."""
    return run / "evaluations" / "parts" / f"{split}_{start:06d}.parquet"


def table_rows(split: str, figures: dict[str, float]) -> list[list[str]]:
    """One row for the split, one for each of its task types."""
    low, high = figures["success_low"], figures["success_high"]
    interval = f"{low:.1%} to {high:.1%}" if not math.isnan(low) else ""
    head = [
        split,
        f"{figures['episodes']:.0f}",
        f"{figures['success_rate']:.1%}",
        interval,
        f"{figures['mean_turns']:.1f}",
    ]
    head += [f"{figures['invalid_action_rate']:.1%}", f"{figures['response_tokens']:.0f}"]
    kinds = [(k.partition("/")[2], v) for k, v in figures.items() if k.startswith("success_rate/")]
    return [head, *([f"  {kind}", "", f"{rate:.1%}", "", "", "", ""] for kind, rate in kinds)]
