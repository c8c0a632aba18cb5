"""A training run from configuration to report: what `alfworld_rl.py` and its siblings call."""

from __future__ import annotations

from contextlib import closing

from rlanything.config.roles import training_roles
from rlanything.config.schema import Config
from rlanything.loop import Loop
from rlanything.plan.show import print_plan
from rlanything.runs.folder import RunFolder
from rlanything.runs.progress import Progress
from rlanything.runs.report import before_after
from rlanything.serving import use_devices
from rlanything.system import System


def train(config: Config) -> None:
    """Run the closed loop, or with `dry_run=true` only print what it would do."""
    progress = Progress()
    if config.dry_run:
        print_plan(config, progress)
        return
    use_devices(config, training_roles(config))
    folder = RunFolder(config)
    with closing(folder):
        folder.open(config)
        progress.line(f"run {folder.path}: loading models")
        with closing(System(config, folder)) as system:
            Loop(config, system, folder, progress).run()
    header, rows = before_after(folder)
    progress.table("Before and after", header, rows)
    progress.line(f"report: {folder.report}")
