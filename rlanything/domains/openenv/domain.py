"""Any environment that an OpenEnv server plays, as a domain: a task is a seed, an action is a JSON object."""

import json
from typing import Any

from rlanything.config.schema import Config
from rlanything.domains.answers import last_object, without_thoughts
from rlanything.domains.base import Domain, Env, Observation, ParsedAction
from rlanything.domains.foreign import ForeignRewriting, boxed_action, names_in, seeds, told_form
from rlanything.domains.openenv.client import client_library, schemas
from rlanything.domains.openenv.env import OpenenvEnv
from rlanything.domains.openenv.options import OpenenvOptions
from rlanything.errors import TaskError
from rlanything.types import Task

OF_EVERY_ACTION = "metadata"  # a field of the base class, which no environment reads


class OpenenvDomain(Domain):
    """A task's payload is what the reset is given: the seed, and the arguments."""

    Options = OpenenvOptions
    options: OpenenvOptions

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        client_library()
        found = schemas(self.options.url)  # finds a wrong address before models are loaded
        self.action = found["action"]
        told = list(found["observation"]["properties"])
        if (key := self.options.success) not in ("reward", "return", "done", *told):
            raise TaskError(
                f"dataset.options.success: found {key}, expected reward, return, done, or one of {', '.join(told)}"
            )
        try:
            unknown = names_in(self.options.observation) - {"observation", *told}
        except ValueError as error:
            raise TaskError(f"dataset.options.observation: {error}") from error
        if unknown:
            raise TaskError(
                f"dataset.options.observation: asks for {', '.join(sorted(unknown))}; it may use observation, "
                f"{', '.join(told)}"
            )
        self.rewriting = ForeignRewriting(self)
        self.fields: dict[str, Any] = {k: v for k, v in self.action["properties"].items() if k != OF_EVERY_ACTION}
        self.required: list[str] = [name for name in self.action.get("required", ()) if name in self.fields]
        if config.dataset.prompt != "compact":
            form = f"a JSON object of this schema: {json.dumps(self.fields, ensure_ascii=False)}"
            if (only := self._only_text()) is not None:
                form = f"in \\boxed{{}}: the text of {only}"
            self.system = told_form(self.options, str(self.action.get("title", "")).removesuffix("Action"), form)

    @property
    def capacity(self) -> int | None:
        return self.options.max_sessions

    def tasks(self, split: str) -> list[Task]:
        return [
            Task(id=f"{split}/{i:06d}", payload={**self.options.arguments, "seed": seed})
            for i, seed in enumerate(seeds(split, self.options.num_task))
        ]

    def make_env(self, task: Task) -> Env:
        return OpenenvEnv(self.options, task.payload)

    def parse_action(self, text: str, observation: Observation) -> ParsedAction:
        """The last JSON object with all fields that an action needs. If it needs one text, the response may be that."""
        found = last_object(without_thoughts(text), self.required)
        if found is not None:
            return ParsedAction(json.dumps(found, ensure_ascii=False))
        only, said = self._only_text(), boxed_action(text)
        if only is None or said.action is None:
            return ParsedAction(None, f"no JSON object with the keys {', '.join(self.required) or 'of an action'}")
        return ParsedAction(json.dumps({only: said.action}, ensure_ascii=False))

    def typed_action(self, text: str, observation: Observation) -> str:
        parsed = self.parse_action(text, observation)
        if parsed.action is None:
            raise ValueError(parsed.error)
        return parsed.action

    def _only_text(self) -> str | None:
        """The only field that an action must have, if it is a text."""
        one = self.required[0] if len(self.required) == 1 else None
        return one if one and self.fields[one].get("type") == "string" else None
