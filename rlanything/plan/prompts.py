"""Renders each of the user's prompts once before models are loaded, to find names that a template cannot have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jinja2 import UndefinedError

from rlanything.domains.base import Domain, Observation, Step
from rlanything.errors import ConfigError
from rlanything.types import Direction, Prompt, Task, Trajectory, Turn

TEXT = "made up"


def check_templates(domain: Domain, task: Task) -> None:
    """Render the templates of `dataset.prompt` on a task of the data with made-up steps.

    Raises ConfigError for a variable, a key or an attribute that does not exist. Other failures are left to the first
    real prompt, because a template may take texts apart that only an environment makes.
    """
    first = Observation(TEXT, actions=(TEXT,))
    if domain.written:
        for steps in ([], [Step(response=TEXT, action=TEXT, observation=first)]):
            with _undefined_alone():
                domain.asked(task, first, steps)
    if domain.judging and domain.judging.written:
        with _undefined_alone():
            if domain.judging.covers == "turn":
                domain.judging.asked(task, _made_up(task), 0)
            else:
                domain.judging.asked(task)
    if domain.rewriting and domain.rewriting.written:
        with _undefined_alone():
            domain.rewriting.asked(task, Direction.HARDER, 0.5, TEXT)


def _made_up(task: Task) -> Trajectory:
    turn = Turn(
        prompt=Prompt(ids=[]),
        response_ids=[],
        logprobs=[],
        text=TEXT,
        action=TEXT,
        actions=(TEXT,),
        observation=TEXT,
    )
    return Trajectory(task_id=task.id, index=0, first_observation=TEXT, turns=[turn])


@contextmanager
def _undefined_alone() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        why = error.__cause__
        if isinstance(why, UndefinedError) and "has no element" not in str(why):  # such as text.split(...)[1]
            raise
