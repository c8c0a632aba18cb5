"""Drawn desktops as a backend of OSWorld."""

from collections.abc import Iterator, Mapping

from rlanything.domains.base import Env
from rlanything.domains.images import ImageStore
from rlanything.domains.osworld.actions import Action
from rlanything.domains.osworld.canvas.acting import perform
from rlanything.domains.osworld.canvas.demonstrations import CanvasDemonstrating
from rlanything.domains.osworld.canvas.desk import HEIGHT, WIDTH
from rlanything.domains.osworld.canvas.env import CanvasEnv
from rlanything.domains.osworld.canvas.goals import instruction
from rlanything.domains.osworld.canvas.library import FamilyLibrary
from rlanything.domains.osworld.canvas.solver import solve
from rlanything.domains.osworld.options import OsworldOptions
from rlanything.domains.osworld.world import World
from rlanything.types import Task


class CanvasWorld(World):
    """`train`, `eval_in_distribution`, and `eval_out_of_distribution` with words and looks that no other task has."""

    screen = WIDTH, HEIGHT

    def __init__(self, options: OsworldOptions, style: str, images: ImageStore, max_step: int) -> None:
        """`style` is `dataset.prompt`; demonstrations have at most `max_step` steps."""
        self.images, self.library = images, FamilyLibrary(options)
        self.demonstrating = CanvasDemonstrating(style, self.library, images, max_step)

    def tasks(self, split: str) -> list[Task]:
        return self.library.tasks(split)

    def verifiers(self, family: str) -> Mapping[str, str]:
        return {name: instruction(v.goals) for name, v in self.library.verifiers(family).items()}

    def variant_refusal(self, family: str, verifier: str) -> str:
        return "" if verifier in self.library.feasible(family) else "infeasible"

    def kind(self, task: Task) -> str:
        """The kind of the goal, "several", or "impossible"."""
        verifier = self.library.verifier(task)
        if not verifier.feasible:
            return "impossible"
        return "several" if len(verifier.goals) > 1 else verifier.goals[0].kind

    def script(self, task: Task) -> Iterator[Action]:
        verifier, desk = self.library.verifier(task), self.library.family(task.payload["family"]).desk.clone()
        while True:
            action = solve(verifier.goals, verifier.feasible, desk).action
            yield action
            if action.kind == "terminate":
                return
            perform(desk, action)

    def make_env(self, task: Task) -> Env:
        return CanvasEnv(self.library.family(task.payload["family"]), self.library.verifier(task), self.images)
