"""One episode on a drawn desktop."""

import json

from rlanything.domains.base import Env, Observation
from rlanything.domains.images import ImageStore
from rlanything.domains.osworld.actions import read_arguments
from rlanything.domains.osworld.canvas.acting import perform
from rlanything.domains.osworld.canvas.drawing import draw, png
from rlanything.domains.osworld.canvas.solver import distance
from rlanything.domains.osworld.canvas.tasks import Family, Verifier
from rlanything.types import Score


class CanvasEnv(Env):
    """Actions are the JSON of `Action.to_json`; None is a response that holds none, and changes nothing."""

    def __init__(self, family: Family, verifier: Verifier, images: ImageStore) -> None:
        self.desk, self.verifier, self.images = family.desk.clone(), verifier, images
        self.goals, self.feasible = verifier.goals, verifier.feasible
        self.left = distance(self.goals, self.feasible, self.desk)
        self.said: str | None = None  # the status with which the agent ended the episode

    async def reset(self) -> Observation:
        return self._seen()

    async def step(self, action: str | None) -> Observation:
        if action is None:
            return self._seen(invalid=True, label=-1)
        read = read_arguments(json.loads(action))
        if read.kind == "terminate":
            self.said = read.status
            return self._seen(done=True, label=1 if self._solved() else -1)
        hit = perform(self.desk, read)
        before, self.left = self.left, distance(self.goals, self.feasible, self.desk)
        return self._seen(label=1 if self.left < before else -1, results=("ok" if hit else "missed",))

    async def score(self, last: Observation) -> Score:
        """The state decides, however the episode ended. Only saying so solves a task that cannot be done."""
        solved = self._solved()
        share = sum(goal.holds(self.desk) for goal in self.goals) / len(self.goals)
        return Score(success=solved, reward=share if self.feasible and self.said != "failure" else float(solved))

    def _solved(self) -> bool:
        return self.verifier.solved(self.desk, self.said)

    def _seen(
        self, *, done: bool = False, invalid: bool = False, label: int | None = None, results: tuple[str, ...] = ()
    ) -> Observation:
        path = self.images.put(png(draw(self.desk)))
        state = repr(vars(self.desk))  # equal pictures may hide other states
        success = done and self._solved()
        return Observation(
            "", images=(path,), done=done, success=success, invalid=invalid, label=label, results=results, state=state
        )
