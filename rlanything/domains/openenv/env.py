"""One episode of an OpenEnv environment."""

from contextlib import AsyncExitStack
from typing import Any

from rlanything.domains.answers import last_object
from rlanything.domains.base import Env, Observation
from rlanything.domains.foreign import is_solved, shown
from rlanything.domains.openenv.client import RefusedAction, Session
from rlanything.domains.openenv.options import OpenenvOptions
from rlanything.types import Score


class OpenenvEnv(Env):
    """A session of the server. Actions are JSON objects as texts."""

    def __init__(self, options: OpenenvOptions, arguments: dict[str, Any]) -> None:
        self.options, self.arguments = options, arguments
        self.total, self.stack = 0.0, AsyncExitStack()

    async def reset(self) -> Observation:
        self.session = await self.stack.enter_async_context(Session(self.options.url))
        return self._seen(await self.session.ask("reset", self.arguments))

    async def step(self, action: str | None) -> Observation:
        try:
            if action is None:
                raise RefusedAction("no action")
            if (found := last_object(action, ())) is None:
                raise RefusedAction(f"{action!r}, expected a JSON object")
            return self._seen(await self.session.ask("step", found))
        except RefusedAction as error:
            return Observation(f"Not an action: {error}", invalid=True)

    async def score(self, last: Observation) -> Score:
        return Score(success=last.success, reward=self.total)

    async def close(self) -> None:
        await self.stack.aclose()

    def _seen(self, answer: dict[str, Any]) -> Observation:
        found, reward, done = answer["observation"], float(answer.get("reward") or 0.0), bool(answer.get("done"))
        self.total += reward
        success = done and is_solved(self.options, done, reward, self.total, found)
        return Observation(shown(self.options.observation, found), done=done, success=success, reward=self.total)
