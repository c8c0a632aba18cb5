"""Measure one policy on benchmark splits (`rlanything eval`). A run that was cut off goes on."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rlanything.config.load import to_yaml
from rlanything.config.schema import Config
from rlanything.domains.registry import make_domain, resolve_options
from rlanything.errors import ConfigError, RunError
from rlanything.evaluation.figures import summarise
from rlanything.evaluation.play import evaluation_rollout, evaluation_tasks, play
from rlanything.plan.plan import Plan, make_plan
from rlanything.plan.show import print_devices
from rlanything.run import Run, use_devices
from rlanything.runs.folder import RunFolder
from rlanything.runs.metrics import Metrics, drop_after
from rlanything.runs.progress import Bar, Progress
from rlanything.runs.store import read_groups, write_groups
from rlanything.types import Group, Task

JUDGING = (("RM process", "rm_process_accuracy"), ("RM outcome", "rm_outcome_agreement"))  # (column, metric)
TESTING = (("tests right", "test_accuracy"), ("telling", "test_detect_rate"))  # of a reward model that writes tests
# Episodes are played in parts. A part is saved when all its episodes have ended, and then the next one begins.
PARTS_AT_ONCE = 8
PART_EPISODES = 16  # at least: in a smaller part, one broken episode would exceed rollout.max_failure_rate


def benchmark(config: Config) -> None:
    """Evaluate `model.policy` on `evaluation.splits`: a table, metrics.jsonl, and one parquet of episodes a split.

    With `evaluation.judge` and a reward model's path, that model judges the episodes. With `dry_run=true` nothing runs.
    Raises ConfigError if the models cannot fit, RunError if the folder holds a training run.
    """
    progress = Progress()
    if not config.evaluation.splits:
        raise ConfigError("evaluation.splits is empty: there is nothing to measure; name splits of the data set")
    resolve_options(config.dataset)  # a call that goes on compares all options
    plan = make_plan(config, learns=False)
    if config.dry_run:
        _print_plan(plan, progress)
        return
    folder = RunFolder(config)
    if folder.rollouts(1).parent.exists():
        raise RunError(
            f"{folder.path}: holds a training run, whose metrics would be lost; choose another experiment.name"
        )
    with use_devices(plan), folder.open():
        _run(plan, folder, progress)


def _print_plan(plan: Plan, progress: Progress) -> None:
    config = plan.config
    progress.line(to_yaml(config).rstrip())
    if config.experiment.num_device:  # a CPU's memory is not planned, and a model need not tell its size
        print_devices(plan, progress)
    domain, evaluation = make_domain(config), config.evaluation
    for split in evaluation.splits:
        tasks = evaluation_tasks(domain, split, evaluation.num_task, config.experiment.seed)
        progress.line(
            f"{split}: {len(tasks)} tasks x {evaluation.num_rollout} episodes of at most "
            f"{evaluation_rollout(config).max_interaction_step} turns"
        )
    progress.line("nothing was started")


def _run(plan: Plan, folder: RunFolder, progress: Progress) -> None:
    config = plan.config
    drop_after(folder.metrics, -1)  # of an earlier call: its episodes are read, and its figures computed anew
    rows: list[dict[str, str]] = []
    with closing(Metrics(folder)) as metrics, closing(Run(plan, folder, progress.line)) as run:
        for split in config.evaluation.splits:
            groups = evaluate_split(split, run, folder, progress)
            write_groups(folder.evaluation(0, split), groups, run.domain.describe, run.domain.kind)
            figures = summarise(groups, run.domain)
            metrics.write(0, "eval", {"split": split, **figures})
            rows += table_rows(split, figures)
    header = list(dict.fromkeys(name for row in rows for name in row))
    progress.table(str(config.model.policy.path), header, [[row.get(name, "") for name in header] for row in rows])
    progress.line(f"episodes: {folder.path / 'evaluations'}")


def evaluate_split(split: str, run: Run, folder: RunFolder, progress: Progress) -> list[Group]:
    """All groups of a split; those of an earlier, unfinished call are read and not played again."""
    config = run.config
    tasks = evaluation_tasks(run.domain, split, config.evaluation.num_task, config.experiment.seed)
    groups = read_parts(folder.path, split, tasks)
    missing = [task for task in tasks if task.id not in groups]
    num = config.evaluation.num_rollout
    size = max(1, max(PART_EPISODES, config.rollout.max_concurrent // PARTS_AT_ONCE) // num)
    at_once = asyncio.Semaphore(max(1, config.rollout.max_concurrent // (size * num)))

    async def play_part(part: list[Task], bar: Bar) -> None:
        async with at_once:
            played = await play(part, run.collect, config, judged=True, on_end=bar.advance)
        path = part_path(folder.path, split, tasks.index(part[0]))
        write_groups(path, played, run.domain.describe, run.domain.kind)
        groups.update((group.task.id, group) for group in played)

    async def play_all(bar: Bar) -> None:
        parts = [missing[start : start + size] for start in range(0, len(missing), size)]
        await asyncio.gather(*(play_part(part, bar) for part in parts))

    with progress.phase(split, len(tasks) * num) as bar:
        bar.advance(len(groups) * num)
        asyncio.run(play_all(bar))
    return [groups[task.id] for task in tasks]


def read_parts(run: Path, split: str, tasks: Sequence[Task]) -> dict[str, Group]:
    """The groups of an unfinished call by their task's id. Raises RunError if the split lacks such a task."""
    by_id, groups = {task.id: task for task in tasks}, dict[str, Group]()
    for path in sorted(part_path(run, split, 0).parent.glob(f"{split}_*.parquet")):
        for group in read_groups(path, by_id):
            if group.task.id not in by_id:
                raise RunError(
                    f"{path}: holds episodes of tasks that {split} has no longer (did dataset.path change?); choose "
                    "another experiment.name, or remove the file"
                )
            groups[group.task.id] = group
    return groups


def part_path(run: Path, split: str, start: int) -> Path:
    """The file of a part until its split is complete; `start` is the number of its first task."""
    return run / "evaluations" / "parts" / f"{split}_{start:06d}.parquet"


def table_rows(split: str, figures: dict[str, float]) -> list[dict[str, str]]:
    """Cells by their column: a row for the split, and one for each of its task types.

    pass@k, maj@k and best of k are there if tasks were played several times, the reward model's rates if it judged, the
    score if the environment gives partial scores, turns if episodes have several.
    """
    low, high = figures["success_low"], figures["success_high"]
    row = {
        "split": split,
        "episodes": f"{figures['episodes']:.0f}",
        "success": f"{figures['success_rate']:.1%}",
        "95 %": f"{low:.1%} to {high:.1%}" if not math.isnan(low) else "",
    }
    of_many = [key for key in figures if key.startswith("pass@")][-1:]  # metrics have pass@j for smaller j too
    of_many += [key for key in figures if key.startswith(("maj@", "best_of_"))]
    row |= {key.replace("_", " "): f"{figures[key]:.1%}" for key in of_many}
    for name, key in TESTING if "test_accuracy" in figures else JUDGING:
        if not math.isnan(figures.get(key, math.nan)):
            row[name] = f"{figures[key]:.1%}"
    if "partial_score" in figures:
        row["score"] = f"{figures['partial_score']:.1%}"
    if figures["mean_turns"] != 1:  # there are domains of one turn
        row["turns"] = f"{figures['mean_turns']:.1f}"
    row["invalid"] = f"{figures['invalid_action_rate']:.1%}"
    row["tokens"] = f"{figures['response_tokens']:.0f}"
    rows = [row]
    for kind in [key.partition("/")[2] for key in figures if key.startswith("success_rate/")]:
        rows.append({"split": f"  {kind}", "success": f"{figures[f'success_rate/{kind}']:.1%}"})
        if f"partial_score/{kind}" in figures:
            rows[-1]["score"] = f"{figures[f'partial_score/{kind}']:.1%}"
    return rows
