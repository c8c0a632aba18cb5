"""Renders each of the user's prompts once before models are loaded, to find names that a template cannot have, and
models that cannot read them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from jinja2 import UndefinedError

from rlanything.config.section import Role
from rlanything.domains.base import Domain, Observation, Step
from rlanything.domains.parts import Written
from rlanything.engines.chat import Chat
from rlanything.errors import ConfigError
from rlanything.types import Direction, Message, Prompt, Task, Trajectory, Turn, user

TEXT = "made up"
Prompts = dict[Role, tuple[Written | None, list[Callable[[], list[Message]]]]]


def check_templates(domain: Domain, task: Task, chats: Mapping[Role, Chat]) -> None:
    """Render the templates of `dataset.prompt` on a task of the data with made-up steps.

    Raises ConfigError for a variable, a key or an attribute that does not exist. Other failures are left to the first
    real prompt, because a template may take texts apart that only an environment makes. Raises ChatError if a model
    that has no chat template would be asked in another way than by a raw template.
    """
    without = {role: chat for role, chat in chats.items() if chat.raw_only}
    for role, (written, prompts) in _prompts(domain, task).items():
        if written is None and role in without:
            without[role].prompt([user(TEXT)])
        for prompt in prompts if written else ():
            with _undefined_alone():
                messages = prompt()
                if role in without:
                    without[role].prompt(messages)


def _prompts(domain: Domain, task: Task) -> Prompts:
    """Each role's template, and what renders its prompts on made-up steps."""
    first = Observation(TEXT, actions=(TEXT,))
    steps: tuple[list[Step], ...] = ([], [Step(response=TEXT, action=TEXT, observation=first)])
    found: Prompts = {"policy": (domain.written, [partial(domain.asked, task, first, before) for before in steps])}
    if judging := domain.judging:
        asked = (
            partial(judging.asked, task, _made_up(task), 0)
            if judging.covers == "turn"
            else partial(judging.asked, task)
        )
        found["reward"] = (judging.written, [asked])
    if rewriting := domain.rewriting:
        found["rewriter"] = (rewriting.written, [partial(rewriting.asked, task, Direction.HARDER, 0.5, TEXT)])
    return found


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
