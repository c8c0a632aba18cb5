"""Any environment of Gymnasium as a domain: a task is a seed, an action is the name or the JSON in a response.

Source: gymnasium.farama.org, "Basic Usage" and the API of Env and spaces.
"""

from functools import partial
from typing import Any

from rlanything.config.plugins import load_module
from rlanything.config.schema import Config
from rlanything.domains.base import Domain, Env, Observation, ParsedAction
from rlanything.domains.foreign import ForeignRewriting, boxed_action, seeds, told_form
from rlanything.domains.gymnasium.env import GymnasiumEnv
from rlanything.domains.gymnasium.options import GymnasiumOptions
from rlanything.domains.gymnasium.texts import action_names, observed
from rlanything.errors import TaskError
from rlanything.types import Task

INSTALL = 'dataset.domain=gymnasium needs the package gymnasium: pip install -e ".[gymnasium]"'


class GymnasiumDomain(Domain):
    """A task's payload is the seed, and the arguments that the rewriter may change."""

    Options = GymnasiumOptions
    options: GymnasiumOptions

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.rewriting = ForeignRewriting(self)
        env = self._make({})  # finds a wrong id before models are loaded
        try:
            shown, _ = env.reset(seed=0)
            observed(env, shown, self.options.observation)
        except Exception as error:  # an environment may raise anything
            raise TaskError(
                f"dataset.options.id={self.options.id}: its first observation ({env.observation_space}) cannot be "
                f"made, or written as text: {error!r}; correct dataset.options.arguments, or give a template "
                "(dataset.options.observation)"
            ) from error
        names = action_names(env, self.options.actions)
        if (num := len(self.options.actions)) and num != getattr(env.action_space, "n", 0):
            raise TaskError(
                f"dataset.options.actions: found {num} names, but the actions of {self.options.id} are "
                f"{env.action_space}"
            )
        env.close()
        if config.dataset.prompt != "compact":
            form = f"one of: {', '.join(names)}" if names else f"JSON, an element of {env.action_space}"
            self.system = told_form(self.options, self.options.id, f"in \\boxed{{}}, {form}")

    def tasks(self, split: str) -> list[Task]:
        known = {k: v for k, v in self.options.arguments.items() if isinstance(v, (str, int, float))}
        return [
            Task(id=f"{split}/{i:06d}", payload={**known, "seed": seed})
            for i, seed in enumerate(seeds(split, self.options.num_task))
        ]

    def make_env(self, task: Task) -> Env:
        make = partial(self._make, _arguments(task))
        return GymnasiumEnv(make, int(task.payload["seed"]), self.options)

    def describe(self, task: Task) -> str:
        return ", ".join([self.options.id, *(f"{key}={value}" for key, value in task.payload.items())])

    def parse_action(self, text: str, observation: Observation) -> ParsedAction:
        return boxed_action(text)

    def _make(self, changed: dict[str, Any]) -> Any:
        """The environment, with its picture of characters if it has one. Raises TaskError."""
        try:
            import gymnasium
        except ImportError as error:
            raise TaskError(INSTALL) from error
        module, _, name = self.options.id.rpartition(":")
        if module:
            load_module("dataset.options.id", self.options.id, module)
        try:
            entry = gymnasium.spec(name).entry_point
            kind = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
            arguments = self.options.arguments | changed
            if "ansi" in getattr(kind, "metadata", {}).get("render_modes", ()):
                arguments = {"render_mode": "ansi"} | arguments
            return gymnasium.make(name, disable_env_checker=True, **arguments)  # it warns of details at every episode
        except Exception as error:  # an environment may raise anything for arguments that it does not take
            raise TaskError(f"dataset.options.id={self.options.id}: {error}") from error


def _arguments(task: Task) -> dict[str, Any]:
    return {key: value for key, value in task.payload.items() if key != "seed"}
