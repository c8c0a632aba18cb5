"""One ALFWorld episode as the loop sees it."""

from __future__ import annotations

from rlanything.domains.alfworld.model import Game
from rlanything.domains.alfworld.progress import Progress
from rlanything.domains.alfworld.simulator import NOTHING_HAPPENS, Episode
from rlanything.domains.base import Observation


class SimulatorEnv:
    """An episode in the embedded simulator, with step labels."""

    def __init__(self, game: Game) -> None:
        self.episode = Episode(game)

    async def reset(self) -> Observation:
        """Start anew."""
        text = self.episode.reset()
        self.progress = Progress(self.episode)
        return Observation(text, tuple(self.episode.admissible))

    async def step(self, action: str | None) -> Observation:
        """Take one command; one that is not admissible is answered by NOTHING_HAPPENS and marked invalid."""
        feedback, won = self.episode.step(action or "")
        label, _ = self.progress.step(action or "", feedback)
        return Observation(feedback, tuple(self.episode.admissible), won, won, feedback == NOTHING_HAPPENS, label)

    async def close(self) -> None:
        """Nothing is held."""
