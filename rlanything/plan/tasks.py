"""The tasks that a run trains on."""

import random
from collections.abc import Callable
from pathlib import Path

from rlanything.config.schema import Config
from rlanything.domains.base import Domain, playable, split_tasks
from rlanything.errors import RunError, TaskError
from rlanything.runs.store import success_rates
from rlanything.types import Task


def training_tasks(config: Config, domain: Domain, say: Callable[[str], None]) -> list[Task]:
    """The originals: those of `dataset.accuracy_band` if `dataset.accuracy` names a file, and of these
    `dataset.num_task`, drawn with the seed, less those that this machine refuses. `say` is told how many the file
    leaves out, and why. Raises TaskError if none is left."""
    dataset = config.dataset
    tasks = split_tasks(domain, dataset.train_split)
    num_split = len(tasks)
    if dataset.accuracy:
        low, high = dataset.accuracy_band
        try:
            rates = success_rates(Path(dataset.accuracy))
        except RunError as error:
            raise TaskError(f"dataset.accuracy={error}") from error
        known = [task for task in tasks if task.id in rates]
        tasks = [task for task in known if low <= rates[task.id] <= high]
        say(
            f"dataset.accuracy: of {num_split} tasks {len(tasks)} train, {len(known) - len(tasks)} are outside of "
            f"dataset.accuracy_band, {num_split - len(known)} were not played in the evaluation"
        )
        if not tasks:
            raise TaskError(
                f"dataset.accuracy={dataset.accuracy}: of its {len(rates)} tasks {len(known)} are of the split "
                f"{dataset.train_split}, and none has a success rate from {low} to {high}; evaluate that split, or "
                "widen dataset.accuracy_band"
            )
    if dataset.num_task:
        tasks = random.Random(f"{config.experiment.seed}/tasks").sample(tasks, min(dataset.num_task, len(tasks)))
    return playable(domain, dataset.train_split, tasks)
