"""A run folder with made groups, for the tests of its report."""

from __future__ import annotations

from collections.abc import Sequence

from builders import diagnostics, judgement

from rlanything.algorithm.advantages import assign_advantages
from rlanything.config.schema import AlgorithmConfig
from rlanything.evaluation.figures import wilson
from rlanything.runs.folder import RunFolder
from rlanything.runs.metrics import Metrics
from rlanything.runs.store import write_groups
from rlanything.types import Group, Prompt, Score, Task, Trajectory, Turn


def turn(text: str = "I look. \\boxed{look}", observation: str = "You see a mug 1.") -> Turn:
    prompt = Prompt(ids=[1, 2])
    exchange = {"prompt": prompt, "response_ids": [3], "logprobs": [-0.2], "text": text}
    return Turn(**exchange, action="look", observation=observation, label=1)


def group(task: Task, outcomes: Sequence[int], **texts: str) -> Group:
    made = Group(task=task, trajectories=[])
    for i, outcome in enumerate(outcomes):
        score = Score(success=outcome > 0)
        episode = Trajectory(task_id=task.id, index=i, first_observation="a room", turns=[turn(**texts)], score=score)
        made.trajectories.append(episode)
        made.judgements += [judgement({(i, 0): s}) for s in (1, -1, None)]
    assign_advantages([made], AlgorithmConfig())
    return made


def describe(task: Task) -> str:
    return str(task.payload.get("sentence", task.id))


def write_step(folder: RunFolder, step: int, groups: Sequence[Group], **figures: float) -> None:
    write_groups(folder.rollouts(step), groups, describe, lambda task: "any")
    Metrics(folder).write(step, "train", diagnostics(groups) | figures)


def write_evaluation(folder: RunFolder, step: int, split: str, successes: int, **figures: float | None) -> None:
    low, high = wilson(successes, 100)
    values = {"success_rate": successes / 100, "success_low": low, "success_high": high}
    Metrics(folder).write(step, "eval", {"split": split, **values, **figures})
