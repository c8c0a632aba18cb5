"""Measure one policy on benchmark splits (`rlanything eval`). A run that was cut off goes on."""

import asyncio
import math
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from rlanything.algorithm.diagnostics import SameAnswer, tally
from rlanything.algorithm.summary import GroupSummary, summary
from rlanything.config.load import to_yaml
from rlanything.config.schema import Config
from rlanything.domains.base import split_tasks
from rlanything.domains.registry import make_domain, resolve_options
from rlanything.errors import ConfigError, RunError
from rlanything.evaluation.figures import summarise
from rlanything.evaluation.play import evaluation_batch, evaluation_rollout, evaluation_tasks, play
from rlanything.plan.models import check_local, check_tools
from rlanything.plan.plan import Plan, make_plan
from rlanything.plan.prompts import check_templates
from rlanything.plan.show import print_devices
from rlanything.run import Run, use_devices
from rlanything.runs.folder import RunFolder, remove
from rlanything.runs.metrics import Metrics, drop_after
from rlanything.runs.progress import Bar, Progress
from rlanything.runs.sinks import check_sinks
from rlanything.runs.store import parts, read_groups
from rlanything.types import Task

JUDGING = (("RM process", "rm_process_accuracy"), ("RM outcome", "rm_outcome_agreement"))  # (column, metric)
TESTING = (("tests right", "test_accuracy"), ("telling", "test_detect_rate"))  # of a reward model that writes tests
# Episodes are played in parts. A part is saved when all its episodes have ended, and then the next one begins.
PARTS_AT_ONCE = 8
PART_EPISODES = 16  # at least: in a smaller part, one broken episode would exceed rollout.max_failure_rate


def benchmark(config: Config) -> None:
    """Evaluate `model.policy` on `evaluation.splits`: a table, metrics.jsonl, and a folder of episodes a split.

    With `evaluation.judge` and a reward model's path, that model judges the episodes. With `dry_run=true` nothing runs.
    Raises ConfigError if the models cannot fit, RunError if the folder holds a training run.
    """
    progress = Progress()
    if not config.evaluation.splits:
        raise ConfigError("evaluation.splits is empty: there is nothing to measure; name splits of the data set")
    resolve_options(config.dataset)  # a call that goes on compares all options
    plan = make_plan(config, learns=False)
    check_sinks(config.experiment.sinks)
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
        chats, _, too_large = print_devices(plan, progress)
    else:
        chats, too_large = check_local(plan), ""
    domain, evaluation = make_domain(config), config.evaluation
    check_tools(chats, domain)
    for split in evaluation.splits:
        tasks = evaluation_tasks(domain, split, evaluation.num_task)
        for task in tasks[:1]:
            check_templates(domain, task, chats)
        progress.line(
            f"{split}: {len(tasks)} tasks x {evaluation.num_rollout} episodes of at most "
            f"{evaluation_rollout(config).max_interaction_step} turns"
        )
    progress.line("nothing was started")
    if too_large:
        raise ConfigError(too_large)


def _run(plan: Plan, folder: RunFolder, progress: Progress) -> None:
    config = plan.config
    drop_after(folder.metrics, -1)  # of an earlier call: its episodes are read, and its figures computed anew
    rows: list[dict[str, str]] = []
    with closing(Metrics(folder)) as metrics, closing(Run(plan, folder, progress.line)) as run:
        for split in config.evaluation.splits:
            figures = summarise(evaluate_split(split, run, folder, progress), run.domain.kind)
            metrics.write(0, "eval", {"split": split, **figures})
            rows += table_rows(split, figures)
    header = list(dict.fromkeys(name for row in rows for name in row))
    progress.table(str(config.model.policy.path), header, [[row.get(name, "") for name in header] for row in rows])
    progress.line(f"episodes: {folder.path / 'evaluations'}")


def evaluate_split(split: str, run: Run, folder: RunFolder, progress: Progress) -> list[GroupSummary]:
    """Summaries of all groups of a split; those of an earlier call are read from its files and not played again.

    The files get their place among the evaluations when the split is complete.
    """
    config, done, begun = run.config, folder.evaluation(0, split), folder.unfinished(0, split)
    tasks = evaluation_tasks(run.domain, split, config.evaluation.num_task)
    if done.is_file():
        raise RunError(f"{done}: was written by an earlier version; choose another experiment.name, or remove it")
    known, same, wanted = split_tasks(run.domain, split), run.domain.same_answer, {task.id for task in tasks}
    read = [item for path in (done, begun) for item in read_parts(path, known, same).items()]
    groups = {id: group for id, group in read if id in wanted}  # a task may have been refused since
    found = [*parts(done), *parts(begun)]
    first_part = 1 + max((int(path.stem.partition("_")[2]) for path in found), default=-1)
    missing = [task for task in tasks if task.id not in groups]
    num = config.evaluation.num_rollout
    size = max(1, max(PART_EPISODES, config.rollout.max_concurrent // PARTS_AT_ONCE) // num)
    at_once = asyncio.Semaphore(max(1, config.rollout.max_concurrent // (size * num)))

    async def play_part(part: list[Task], bar: Bar) -> None:
        first = first_part + tasks.index(part[0])
        scratch = begun / f"playing_{first:06d}"  # its files are kept once the part is whole, and few episodes broke
        remove(scratch)
        batch = replace(evaluation_batch(part, config, judged=True, path=scratch), part=first)
        async with at_once:
            played = await play(batch, run.collect, bar.advance)
        move_parts(scratch, begun)
        groups.update((group.task.id, group) for group in played)

    async def play_all(bar: Bar) -> None:
        starts = range(0, len(missing), size)
        await asyncio.gather(*(play_part(missing[start : start + size], bar) for start in starts))

    with progress.phase(split, len(tasks) * num) as bar:
        bar.advance(len(groups) * num)
        asyncio.run(play_all(bar))
    move_parts(begun, done)
    return [groups[task.id] for task in tasks]


def read_parts(folder: Path, tasks: Sequence[Task], same: SameAnswer) -> dict[str, GroupSummary]:
    """Summaries of the groups in a folder by their task's id. Raises RunError if the split has no such task."""
    by_id, groups = {task.id: task for task in tasks}, dict[str, GroupSummary]()
    for path in parts(folder):
        for group in read_groups(path, by_id):
            if group.task.id not in by_id:
                raise RunError(
                    f"{path}: holds episodes of tasks that the split has no longer (did dataset.path change?); choose "
                    "another experiment.name, or remove the file"
                )
            groups[group.task.id] = summary(group, tally(group, same))
    return groups


def move_parts(source: Path, target: Path) -> None:
    """Move a folder's files of episodes into another folder, and remove the first one."""
    target.mkdir(parents=True, exist_ok=True)
    for path in parts(source):
        os.replace(path, target / path.name)
    remove(source)


def table_rows(split: str, figures: dict[str, float]) -> list[dict[str, str]]:
    """Cells by their column: a row for the split, and one for each of its task types.

    pass@k, maj@k and best of k are there if tasks were played several times, the reward model's rates if it judged, the
    score if the environment gives partial scores, the share of episodes with calls if any call a tool, turns if
    episodes have several. The metrics have the intervals of all these; a terminal has no room for them.
    """
    row = {"split": split, **_success(figures)}
    for key in figures:
        if f"{key}_low" in figures:  # pass@k, maj@k, best of k; metrics have pass@j for smaller j too
            row[key.replace("_", " ")] = f"{figures[key]:.1%}"
    for name, key in TESTING if "test_accuracy" in figures else JUDGING:
        if not math.isnan(figures.get(key, math.nan)):
            row[name] = f"{figures[key]:.1%}"
    row |= _scores(figures)
    if figures["mean_turns"] != 1:  # there are domains of one turn
        row["turns"] = f"{figures['mean_turns']:.1f}"
    row["invalid"] = f"{figures['invalid_action_rate']:.1%}"
    row["tokens"] = f"{figures['response_tokens']:.0f}"
    rows = [row]
    for kind in [key.partition("/")[2] for key in figures if key.startswith("success_rate/")]:
        rows.append({"split": f"  {kind}", **_success(figures, f"/{kind}"), **_scores(figures, f"/{kind}")})
    return rows


def _success(figures: dict[str, float], of: str = "") -> dict[str, str]:
    """Cells of success; `of` is "/KIND" for those of a kind of task."""
    low, high = figures[f"success_low{of}"], figures[f"success_high{of}"]
    return {
        "episodes": f"{figures[f'episodes{of}']:.0f}",
        "success": f"{figures[f'success_rate{of}']:.1%}",
        "95 %": f"{low:.1%} to {high:.1%}" if not math.isnan(low) else "",
    }


def _scores(figures: dict[str, float], of: str = "") -> dict[str, str]:
    """Cells of partial scores and of calls; those that there are."""
    shown = {"score": f"partial_score{of}", "with calls": f"call_share{of}"}
    return {column: f"{figures[key]:.1%}" for column, key in shown.items() if key in figures}
