"""`rlanything eval config=FILE.yaml policy=script`: play scripted solutions in place of a model.

It tells whether the environment works: every task with a solution must be solved.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from rlanything.config.schema import Config
from rlanything.domains.base import Domain, admitted
from rlanything.domains.registry import make_domain
from rlanything.errors import ClearError, RunError, TaskError
from rlanything.evaluation.play import evaluation_tasks
from rlanything.runs.progress import Progress
from rlanything.types import Task

SHOWN = 5  # failures that the message names


def play_scripts(config: Config, progress: Progress) -> None:
    """Play the scripted solution of each task of `evaluation.splits`, and print a table by kind.

    Raises RunError if one fails, TaskError if a split has no task with a solution.
    """
    with closing(make_domain(config)) as domain:
        domain.prepare(config.evaluation.splits)
        for split in config.evaluation.splits:
            drawn = partial(_scripted, domain, split, config.evaluation.num_task)
            scripted = admitted(domain, drawn, progress.line)
            started, at_once = time.perf_counter(), domain.at_once(config.rollout.max_concurrent)
            with progress.phase(split, len(scripted)) as bar:
                faults = asyncio.run(_play_all(domain, scripted, at_once, bar.advance))
            _print(domain, split, scripted, faults, time.perf_counter() - started, progress)


def _scripted(domain: Domain, split: str, num: int) -> list[Task]:
    """The tasks of an evaluation that have a scripted solution. Raises TaskError if none has."""
    tasks = evaluation_tasks(domain, split, num)
    if not (scripted := [task for task in tasks if domain.script(task) is not None]):
        raise TaskError(f"split {split}: none of its {len(tasks)} tasks has a scripted solution")
    return scripted


async def _play_all(domain: Domain, tasks: Sequence[Task], at_once: int, on_end: Callable[[], None]) -> dict[str, str]:
    """Why tasks were not solved, by their id."""
    limit, faults = asyncio.Semaphore(at_once), dict[str, str]()

    async def one(task: Task) -> None:
        async with limit:
            if fault := await _play(domain, task):
                faults[task.id] = fault
        on_end()

    await asyncio.gather(*(one(task) for task in tasks))
    return faults


async def _play(domain: Domain, task: Task) -> str:
    """Why the script did not solve the task; "" if it did."""
    env = domain.make_env(task)
    try:
        observation = await env.reset()
        for action in domain.script(task) or ():
            observation = await env.step(action)
            if observation.done:
                break
        return "" if (await env.score(observation)).success else "not solved at the end of the script"
    except ClearError:
        raise
    except Exception as error:  # environments are third-party code
        return f"{type(error).__name__}: {error}"
    finally:
        await env.close()


def _print(
    domain: Domain, split: str, tasks: Sequence[Task], faults: dict[str, str], seconds: float, progress: Progress
) -> None:
    played = Counter(domain.kind(task) for task in tasks)
    solved = Counter(domain.kind(task) for task in tasks if task.id not in faults)
    rows = [[kind, str(played[kind]), f"{solved[kind] / played[kind]:.1%}"] for kind in sorted(played)]
    progress.table(split, ["kind", "tasks", "solved by script"], rows)
    progress.line(f"{split}: {len(tasks)} scripted solutions in {seconds:.0f} s")
    if shown := sorted(domain.images.folder.glob("*/*.png")):
        progress.line(f"{len(shown)} screenshots: {domain.images.folder}")
    if faults:
        named = "\n".join(f"  {task}: {fault}" for task, fault in list(faults.items())[:SHOWN])
        raise RunError(
            f"{split}: {len(faults)} of {len(tasks)} scripted solutions failed, so the environment cannot be trusted; "
            f"the first are\n{named}"
        )
