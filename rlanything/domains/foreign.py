"""Domains of other projects' environments share this: rewards say whether a task is solved; most tasks are seeds."""

import asyncio
import json
import zlib
from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any

from pydantic import PositiveInt

from rlanything.config.section import Section
from rlanything.domains.answers import boxed, without_thoughts
from rlanything.domains.base import Domain, ParsedAction
from rlanything.domains.parts import RejectedTask, Rewriting
from rlanything.types import Task


class ForeignOptions(Section):
    """Keys of every such domain."""

    success: str = "reward"
    """A task is solved with `reward` if the episode ends with a last reward above 0, with `return` if their sum
    reaches `success_from`, with `done` if it ends before any limit. Any other word is a key of what the environment
    tells, which must be true at the end."""
    success_from: float = 1.0
    """Sum of rewards from which on a task is solved, for `success: return`."""


class SeededOptions(ForeignOptions):
    """Keys of domains whose tasks are seeds."""

    num_task: PositiveInt = 512
    """Tasks of each split. They differ in the seed of the reset."""
    observation: str = ""
    """Format string of an observation, with the observation's own keys, and `observation` for all of it as JSON. Empty
    shows an observation that is a text or holds one alone, else JSON."""
    instructions: str = ""
    """The policy is told this about the environment, with the prompt style `full`."""


class ForeignRewriting(Rewriting):
    """The default rewriter; a variant is proven by a reset, because an environment may refuse what a model writes."""

    def __init__(self, domain: Domain, check: Callable[[Task], None] | None = None) -> None:
        """`check` looks at a variant first, by default at its seed; it raises RejectedTask."""
        super().__init__(domain.config.dataset.prompt, check or _check_seed)
        self.domain, self.rollout = domain, domain.config.rollout

    async def prove(self, task: Task) -> Task:
        env = self.domain.make_env(task)
        try:
            async with self.domain.limit(self.rollout.max_concurrent):
                try:
                    async with asyncio.timeout(self.rollout.env_timeout_s):
                        await env.reset()
                finally:
                    async with asyncio.timeout(self.rollout.env_timeout_s):  # it may wait for a reset that hangs
                        await env.close()
        except Exception as error:  # an environment may raise anything
            raise RejectedTask("environment", f"{error!r}") from error
        return task


def _check_seed(task: Task) -> None:
    seed = task.payload["seed"]
    if not isinstance(seed, int) or not 0 <= seed < 2**31:
        raise RejectedTask("seed", f"{seed!r}, expected a whole number from 0 to 2^31")


def shown(template: str, observation: Any, **more: str) -> str:
    """The text of an observation, a value as JSON has it, by the template.

    Without a template it is the text itself, or the only text of an object, else JSON. Raises KeyError, IndexError or
    ValueError for a template that does not fit.
    """
    whole = json.dumps(observation, ensure_ascii=False)
    fields = observation if isinstance(observation, Mapping) else {}
    if template:
        return template.format(**{"observation": whole} | more | {str(key): value for key, value in fields.items()})
    texts = [value for value in fields.values() if isinstance(value, str) and value]
    return observation if isinstance(observation, str) else texts[0] if len(texts) == 1 else whole


def names_in(template: str) -> set[str]:
    """The keys that a format string asks for. Raises ValueError if it is none."""
    fields = (name for _, name, _, _ in Formatter().parse(template) if name is not None)
    return {name.partition(".")[0].partition("[")[0] for name in fields}


def seeds(split: str, num: int) -> range:
    """`num` seeds for a split; all fit 32 bits. Two splits begin at the same seed with a chance of 1 in 2,000."""
    first = zlib.crc32(split.encode()) % 2000 * 1_000_000
    return range(first, first + num)


def is_solved(options: ForeignOptions, done: bool, reward: float, total: float, told: Mapping[str, Any]) -> bool:
    """True if the episode, which is over, has solved its task. `done` is False if a limit ended it."""
    match options.success:
        case "reward":
            return done and reward > 0
        case "return":
            return total >= options.success_from
        case "done":
            return done
    return bool(told.get(options.success))


def boxed_action(text: str) -> ParsedAction:
    """The last boxed text of a response, or all of it, without its thoughts."""
    said = without_thoughts(text)
    found = boxed(said)
    action = (found[-1] if found else said).strip()
    return ParsedAction(action) if action else ParsedAction(None, "an empty response")


def told_form(options: SeededOptions, name: str, form: str) -> str:
    """The policy's system prompt: the instructions, and the form of an action."""
    about = options.instructions or f"You act in the environment {name}."
    return f"{about} In each turn think briefly, then give exactly one action, {form}."
