"""OSWorld as a domain: an agent that sees a screen and acts with mouse and keyboard."""

from __future__ import annotations

from collections.abc import Sequence

from rlanything.config.schema import Config
from rlanything.domains.base import Domain, Env, Observation, ParsedAction, Step
from rlanything.domains.osworld import prompts
from rlanything.domains.osworld.actions import LAST, InvalidAction, read_response, read_typed
from rlanything.domains.osworld.demonstrations import CanvasDemonstrating
from rlanything.domains.osworld.env import CanvasEnv
from rlanything.domains.osworld.library import FamilyLibrary
from rlanything.domains.osworld.options import OsworldOptions
from rlanything.domains.osworld.rewriting import FamilyRewriting, identity
from rlanything.domains.parts import StepJudging
from rlanything.types import Message, Task, Tool, Trajectory


class ScreenJudging(StepJudging):
    """The task, what was done before, and the step between the screens before and after it."""

    def messages(self, task: Task, trajectory: Trajectory, i: int) -> list[Message]:
        return prompts.judge(task.payload["instruction"], trajectory, i, self.style)


class OsworldDomain(Domain):
    """Drawn desktops: `train`, `eval_in_distribution`, and `eval_out_of_distribution` with words never asked for."""

    Options = OsworldOptions
    options: OsworldOptions

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        style = config.dataset.prompt
        self.library = FamilyLibrary(self.options)
        self.judging = ScreenJudging(style)
        self.rewriting = FamilyRewriting(style, self.library, self.options.max_instruction)
        max_step = config.rollout.max_interaction_step
        self.demonstrating = CanvasDemonstrating(style, self.library, self.images, max_step)

    def tasks(self, split: str) -> list[Task]:
        return self.library.tasks(split)

    def make_env(self, task: Task) -> Env:
        return CanvasEnv(self.library.family(task.payload["family"]), self.library.verifier(task), self.images)

    def describe(self, task: Task) -> str:
        return str(task.payload["instruction"])

    def kind(self, task: Task) -> str:
        """The kind of the goal, "several", or "impossible"."""
        verifier = self.library.verifier(task)
        if not verifier.feasible:
            return "impossible"
        return "several" if len(verifier.goals) > 1 else verifier.goals[0].kind

    def identity(self, task: Task) -> str:
        return identity(task)

    def tools(self) -> list[Tool]:
        return prompts.tools(self.config.dataset.prompt)

    def opening(self, task: Task, first: Observation) -> list[Message]:
        return prompts.opening(task.payload["instruction"], first, self.config.dataset.prompt)

    def retold(self, task: Task, first: Observation, steps: Sequence[Step]) -> list[Message]:
        style, num_screen = self.config.dataset.prompt, self.options.max_screens
        return prompts.retold(task.payload["instruction"], first, steps, num_screen, style)

    def parse_action(self, text: str, observation: Observation) -> ParsedAction:
        try:
            action = read_response(text)
        except InvalidAction as reason:
            return ParsedAction(None, str(reason))
        point = (action.coordinate[0] / LAST, action.coordinate[1] / LAST) if action.coordinate else None
        return ParsedAction(action.to_json(), point=point)

    def typed_action(self, text: str, observation: Observation) -> str:
        """The action of a line such as `left_click 500 300`, `type hello`, `key ctrl+c` or `terminate success`."""
        return read_typed(text).to_json()
