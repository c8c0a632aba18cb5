"""Compare the evaluations of two runs, paired by task (`rlanything eval --compare RUN_A RUN_B`)."""

import re
from pathlib import Path

from rlanything.errors import RunError
from rlanything.evaluation.figures import paired_interval
from rlanything.runs.progress import Progress
from rlanything.runs.store import success_rates

_FILE = re.compile(r"step_(\d+)_(.+)\.parquet")


def compare(first: Path, second: Path, progress: Progress) -> None:
    """Print a table: for each split that both runs evaluated, success on the tasks of both, and the difference.

    Of several evaluations of a split the last one counts. Raises RunError if there is nothing to compare.
    """
    ours, theirs = evaluations(first), evaluations(second)
    rows = []
    for split in sorted(ours.keys() & theirs.keys()):
        a, b = success_rates(ours[split][1]), success_rates(theirs[split][1])
        both = sorted(a.keys() & b.keys())
        if not both:
            progress.line(f"{split}: the runs have no task in common")
            continue
        low, high = paired_interval([b[task] - a[task] for task in both])
        before, after = (sum(rate[task] for task in both) / len(both) for rate in (a, b))
        steps = f"{ours[split][0]}, {theirs[split][0]}"
        shown = [f"{before:.1%}", f"{after:.1%}", f"{after - before:+.1%}", f"{low:+.1%} to {high:+.1%}"]
        rows.append([split, steps, str(len(both)), *shown])
    if not rows:
        raise RunError(
            f"{first} and {second}: no split with tasks that both runs evaluated (found "
            f"{', '.join(ours) or 'none'} and {', '.join(theirs) or 'none'})"
        )
    progress.table(f"A: {first}\nB: {second}", ["split", "steps", "tasks", "A", "B", "B - A", "95 %, by task"], rows)


def evaluations(run: Path) -> dict[str, tuple[int, Path]]:
    """The step and the file of each split's last evaluation. Raises RunError if the folder is no run's."""
    return {split: max(by_step.items()) for split, by_step in all_evaluations(run).items()}


def all_evaluations(run: Path) -> dict[str, dict[int, Path]]:
    """The files of each split's evaluations by step, in order. Raises RunError if the folder is no run's."""
    if not (run / "evaluations").is_dir():
        raise RunError(f"{run}: holds no evaluations; name the folder of a run, such as runs/NAME")
    found: dict[str, dict[int, Path]] = {}
    for path in sorted((run / "evaluations").glob("*.parquet"), key=lambda path: (len(path.name), path.name)):
        if match := _FILE.fullmatch(path.name):
            found.setdefault(match[2], {})[int(match[1])] = path
    return found
