"""Measure one policy on benchmark splits: what `alfworld_eval.py` calls. A run that was cut off goes on."""

from __future__ import annotations

import asyncio
import math
from contextlib import ExitStack, closing
from pathlib import Path

from omegaconf import OmegaConf

from rlanything.config import Config, ConfigError
from rlanything.domains.registry import make_domain
from rlanything.evaluate import evaluation_tasks, run_evaluation, summarise
from rlanything.plan import print_devices
from rlanything.runs.folder import RunError, RunFolder
from rlanything.runs.metrics import Metrics, drop_after
from rlanything.runs.progress import Progress
from rlanything.runs.store import read_groups, write_groups
from rlanything.serving import Serving, start_cluster, use_devices
from rlanything.types import Group


def benchmark(config: Config) -> None:
    """Evaluate `model.policy` on `evaluation.splits`; a table, metrics.jsonl, and one parquet of episodes a split.

    With `evaluation.judge` and a reward model's path, that model judges the episodes. With `dry_run=true` nothing runs;
    ConfigError where the models cannot fit.
    """
    progress = Progress()
    if not config.evaluation.splits:
        raise ConfigError("evaluation.splits is empty: there is nothing to measure; name splits of the data set")
    if config.dry_run:
        _print_plan(config, progress)
        return
    use_devices(config, _roles(config))
    folder = RunFolder(config)
    if folder.rollouts(1).parent.exists():
        raise RunError(
            f"{folder.path}: holds a training run, whose metrics would be lost; choose another experiment.name"
        )
    with closing(folder):
        folder.open(config)
        _run(config, folder, progress)


def _print_plan(config: Config, progress: Progress) -> None:
    progress.line(OmegaConf.to_yaml(OmegaConf.structured(config)).rstrip())
    if config.experiment.num_device:  # a CPU's memory is not planned, and a model need not tell its size
        print_devices(config, _roles(config), progress, learns=False)
    domain, evaluation = make_domain(config), config.evaluation
    for split in evaluation.splits:
        tasks = evaluation_tasks(domain, split, evaluation.num_task, config.experiment.seed)
        progress.line(
            f"{split}: {len(tasks)} tasks x {evaluation.num_rollout} episodes of at most "
            f"{config.rollout.max_interaction_step} turns"
        )
    progress.line("nothing was started")


def _roles(config: Config) -> list[str]:
    judged = config.evaluation.judge and config.reward.num_evaluation > 0 and bool(config.model.reward.path)
    return ["policy", *["reward"] * judged]


def _run(config: Config, folder: RunFolder, progress: Progress) -> None:
    drop_after(folder.metrics, -1)  # of a call that had finished: its episodes are read, its figures computed anew
    rows: list[dict[str, str]] = []
    with ExitStack() as stack:
        metrics = stack.enter_context(closing(Metrics(folder.metrics, config)))
        roles = _roles(config)
        cluster = start_cluster(config, folder, roles, learns=False)
        if cluster:
            stack.enter_context(closing(cluster))
        serving = stack.enter_context(closing(Serving(config, folder, roles, config.evaluation.splits, cluster)))
        domain = serving.domain
        for split in config.evaluation.splits:
            groups = evaluate_split(split, serving, folder, progress)
            write_groups(folder.evaluation(0, split), groups, domain.describe, domain.kind)
            figures = summarise(groups, domain)
            metrics.write(0, "eval", {"split": split, **figures})
            rows += table_rows(split, figures)
    header = list(dict.fromkeys(name for row in rows for name in row))
    progress.table(str(config.model.policy.path), header, [[row.get(name, "") for name in header] for row in rows])
    progress.line(f"episodes: {folder.path / 'evaluations'}")


def evaluate_split(split: str, serving: Serving, folder: RunFolder, progress: Progress) -> list[Group]:
    """All groups of a split; those of an earlier, unfinished call are read and not played again."""
    config, domain = serving.config, serving.domain
    tasks = evaluation_tasks(domain, split, config.evaluation.num_task, config.experiment.seed)
    by_id = {t.id: t for t in tasks}
    groups: list[Group] = []
    # What is played at once is saved at once: smaller pieces would leave engines idle, and save hardly earlier.
    size = max(1, config.rollout.max_concurrent // config.evaluation.num_rollout)
    for start in range(0, len(tasks), size):
        part, chunk = part_path(folder.path, split, start), tasks[start : start + size]
        if part.exists():
            found = read_groups(part, by_id)
            if [g.task.id for g in found] != [t.id for t in chunk]:
                raise RunError(
                    f"{part}: holds episodes of other tasks than {split} now has there (did dataset.path or "
                    "rollout.max_concurrent change?); choose another experiment.name, or remove the file"
                )
            groups += found
            continue
        label = f"{split} {start}/{len(tasks)}"
        played = asyncio.run(run_evaluation(chunk, serving.collect, config, progress, label, judged=True))
        write_groups(part, played, domain.describe, domain.kind)
        groups += played
    return groups


def part_path(run: Path, split: str, start: int) -> Path:
    """Where a chunk's episodes wait until the split is complete."""
    return run / "evaluations" / "parts" / f"{split}_{start:06d}.parquet"


def table_rows(split: str, figures: dict[str, float]) -> list[dict[str, str]]:
    """Cells by their column: a row for the split, and one for each of its task types.

    pass@k and best of k are there where every task was played several times, tests' rates where tests were written.
    """
    low, high = figures["success_low"], figures["success_high"]
    row = {
        "split": split,
        "episodes": f"{figures['episodes']:.0f}",
        "success": f"{figures['success_rate']:.1%}",
        "95 %": f"{low:.1%} to {high:.1%}" if not math.isnan(low) else "",
    }
    row |= {k.replace("_", " "): f"{v:.1%}" for k, v in figures.items() if k.startswith(("pass@", "best_of_"))}
    for name, key in (("tests right", "test_accuracy"), ("telling", "test_detect_rate")):
        row |= {name: f"{figures[key]:.1%}"} if key in figures else {}
    row |= {"turns": f"{figures['mean_turns']:.1f}", "invalid": f"{figures['invalid_action_rate']:.1%}"}
    row |= {"tokens": f"{figures['response_tokens']:.0f}"}
    kinds = [(k.partition("/")[2], v) for k, v in figures.items() if k.startswith("success_rate/")]
    return [row, *({"split": f"  {kind}", "success": f"{rate:.1%}"} for kind, rate in kinds)]
