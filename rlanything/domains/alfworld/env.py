"""One ALFWorld episode as the loop sees it."""

from collections.abc import Sequence

from rlanything.domains.alfworld.model import Game
from rlanything.domains.alfworld.progress import Progress
from rlanything.domains.alfworld.simulator import NOTHING_HAPPENS, Episode
from rlanything.domains.base import Env, Observation


class SimulatorEnv(Env):
    """An episode in the embedded simulator, with step labels."""

    def __init__(self, game: Game) -> None:
        self.episode = Episode(game)

    async def reset(self) -> Observation:
        text = self.episode.reset()
        self.progress = Progress(self.episode)
        return observe(text, self.episode.admissible)

    async def step(self, action: str | None) -> Observation:
        feedback, won = self.episode.step(action or "")
        label, reason = self.progress.step(action or "", feedback)
        return observe(feedback, self.episode.admissible, won, label, reason)


def observe(
    text: str, admissible: Sequence[str], won: bool = False, label: int | None = None, reason: str = ""
) -> Observation:
    """The loop's view of an answer.

    The admissible commands name the state: they show the agent's place and hand, and what is open and in reach.
    """
    return Observation(
        text,
        actions=tuple(admissible),
        done=won,
        success=won,
        invalid=text == NOTHING_HAPPENS,
        label=label,
        reason=reason,
        state="\n".join(admissible),
    )
