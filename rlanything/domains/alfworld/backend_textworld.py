"""The real TextWorld as a backend: the oracle of the simulator's tests, and `dataset.options.backend: textworld`.

It is slow: a game takes seconds to load, a step some 50 ms. Its packages are imported only when an episode is made,
because an ordinary run does not need them.
"""

import threading
from collections.abc import Mapping
from typing import Any

from rlanything.domains.alfworld.env import observe
from rlanything.domains.alfworld.model import Game
from rlanything.domains.alfworld.progress import Progress
from rlanything.domains.alfworld.simulator import Episode
from rlanything.domains.base import Env, Observation
from rlanything.errors import ClearError
from rlanything.processes.threads import DaemonThread

# Fast Downward's translator keeps module globals: one game is loaded or stepped at a time.
_lock = threading.Lock()


class TextWorldMissing(ClearError, ImportError):
    """A package of the TextWorld backend is not installed. The message says which, and how to get it."""


def _make_env() -> Any:
    """TextWorld's PDDL environment, wrapped as by alfworld's own AlfredTWEnv. Raises TextWorldMissing."""
    try:
        # PddlEnv hides the absence of fast_downward until it is built.
        import fast_downward  # noqa: F401
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld import EnvInfos
        from textworld.envs import PddlEnv
    except ImportError as error:
        raise TextWorldMissing(
            f"dataset.options.backend: textworld needs the package {error.name!r}, which is not installed; "
            'run: pip install "textworld[pddl]==1.7.0" && pip install --no-deps alfworld==0.4.2, '
            "or use dataset.options.backend: simulator, which answers the same"
        ) from error
    return AlfredDemangler(PddlEnv(EnvInfos(won=True, admissible_commands=True)), shuffle=False)


class TextWorldEpisode:
    """One run through a game in TextWorld, with the interface of `simulator.Episode`."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        """`data` is the content of a game.tw-pddl. Raises TextWorldMissing."""
        self._env = _make_env()
        with _lock:
            self._env.load(dict(data))
        self.admissible: list[str] = []
        self.won = False

    def reset(self) -> str:
        """Start anew. Returns the first observation."""
        with _lock:
            return self._read(self._env.reset())

    def step(self, command: str) -> tuple[str, bool]:
        """Carry out a command and return (feedback, won)."""
        with _lock:
            state, _, _ = self._env.step(command)
        return self._read(state), self.won

    def close(self) -> None:
        self._env.close()

    def _read(self, state: Any) -> str:
        self.admissible = list(state["admissible_commands"])
        self.won = bool(state["won"])
        return str(state["feedback"])


class TextWorldEnv(Env):
    """A TextWorld episode as the loop sees it. Steps run in a thread, so that other episodes go on meanwhile.

    TextWorld has no planner, so labels come from the simulator, which takes the same steps. They are None from the
    first step on which the two differ.
    """

    def __init__(self, data: Mapping[str, Any], game: Game) -> None:
        self._data, self._thread = data, DaemonThread()
        self._episode: TextWorldEpisode | None = None
        self._shadow = Episode(game)

    async def reset(self) -> Observation:
        """Raises TextWorldMissing."""
        if self._episode is None:
            self._episode = await self._thread.call(TextWorldEpisode, self._data)
        text = await self._thread.call(self._episode.reset)
        self._equal = self._shadow.reset() == text
        self._progress = Progress(self._shadow)
        return observe(text, self._episode.admissible)

    async def step(self, action: str | None) -> Observation:
        if self._episode is None:
            raise RuntimeError("TextWorldEnv.step before reset: call reset first")
        command = action or ""
        text, won = await self._thread.call(self._episode.step, command)
        shadow_text, _ = self._shadow.step(command)
        label, reason = self._progress.step(command, shadow_text)
        self._equal = self._equal and shadow_text == text
        known = (label, reason) if self._equal else (None, "")
        return observe(text, self._episode.admissible, won, *known)

    async def close(self) -> None:
        self._thread.stop()
        if self._episode is not None:
            self._episode.close()
            self._episode = None
