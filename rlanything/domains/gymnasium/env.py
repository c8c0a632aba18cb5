"""One episode of a Gymnasium environment."""

from collections.abc import Callable
from typing import Any

from rlanything.domains.base import Env, Observation
from rlanything.domains.foreign import is_solved
from rlanything.domains.gymnasium.options import GymnasiumOptions
from rlanything.domains.gymnasium.texts import action_names, observed, read_action
from rlanything.processes.threads import DaemonThread
from rlanything.types import Score


class GymnasiumEnv(Env):
    """Seeds, steps and scores. The environment lives in a thread of its own, because it may take long or hang."""

    def __init__(self, make: Callable[[], Any], seed: int, options: GymnasiumOptions) -> None:
        self.make, self.seed, self.options = make, seed, options
        self.thread = DaemonThread()
        self.env: Any = None
        self.total, self.last = 0.0, Observation("")

    async def reset(self) -> Observation:
        return await self.thread.call(self._reset)

    async def step(self, action: str | None) -> Observation:
        return await self.thread.call(self._step, action)

    async def score(self, last: Observation) -> Score:
        return Score(success=last.success, reward=self.total)

    async def close(self) -> None:
        try:
            await self.thread.call(self._close)
        finally:
            self.thread.stop()

    def _close(self) -> None:
        if self.env is not None:
            self.env.close()

    def _reset(self) -> Observation:
        self.env = self.make()
        self.names = action_names(self.env, self.options.actions)
        shown, info = self.env.reset(seed=self.seed)
        self.last = self._seen(shown, info)
        return self.last

    def _step(self, action: str | None) -> Observation:
        try:
            if action is None:
                raise ValueError("no action")
            element = read_action(self.env.action_space, self.names, action)
        except ValueError as error:
            return Observation(f"Not an action: {error}.", actions=self.last.actions, invalid=True)
        shown, reward, terminated, truncated, info = self.env.step(element)
        self.total += float(reward)
        over = terminated or truncated
        success = over and is_solved(self.options, terminated, float(reward), self.total, info)
        self.last = self._seen(shown, info, done=over, success=success, reward=self.total)
        return self.last

    def _seen(self, shown: Any, info: dict[str, Any], **ended: Any) -> Observation:
        text, possible = observed(self.env, shown, self.options.observation), self.names
        if (mask := info.get("action_mask")) is not None and self.names:
            possible = tuple(name for name, allowed in zip(self.names, mask, strict=True) if allowed)
            text += f"\nPossible now: {', '.join(possible)}."
        return Observation(text, actions=possible, **ended)
