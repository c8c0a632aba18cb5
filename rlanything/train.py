"""A training run from configuration to report."""

from contextlib import closing

from rlanything.config.schema import Config
from rlanything.domains.registry import resolve_options
from rlanything.loop import Loop
from rlanything.plan.plan import make_plan
from rlanything.plan.show import print_plan
from rlanything.run import Run, use_devices
from rlanything.runs.folder import RunFolder
from rlanything.runs.metrics import Metrics
from rlanything.runs.progress import Progress
from rlanything.runs.report import before_after
from rlanything.runs.sinks import check_sinks


def train(config: Config) -> None:
    """Run the closed loop, or with `dry_run=true` only print what it would do."""
    resolve_options(config.dataset)  # a resumed run compares all options
    progress, plan = Progress(), make_plan(config, learns=True)
    check_sinks(config.experiment.sinks)
    if config.dry_run:
        print_plan(plan, progress)
        return
    folder = RunFolder(config)
    with use_devices(plan), folder.open(), closing(Metrics(folder)) as metrics:
        progress.line(f"run {folder.path}: loading models")
        with closing(Run(plan, folder, progress.line)) as run:
            Loop(run, folder, metrics, progress).train()
    header, rows = before_after(folder)
    if rows:  # there are none without evaluations
        progress.table("Before and after", header, rows)
    progress.line(f"report: {folder.report}")
