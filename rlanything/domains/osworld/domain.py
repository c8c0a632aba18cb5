"""OSWorld as a domain: an agent that sees a screen and acts with mouse and keyboard."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rlanything.config.schema import Config
from rlanything.domains.base import Domain, Env, Observation, ParsedAction, Step
from rlanything.domains.osworld import prompts
from rlanything.domains.osworld.actions import LAST, InvalidAction, read_response, read_typed
from rlanything.domains.osworld.canvas.world import CanvasWorld
from rlanything.domains.osworld.options import BOOT_S, OsworldOptions
from rlanything.domains.osworld.rewriting import FamilyRewriting, identity
from rlanything.domains.osworld.world import World
from rlanything.domains.parts import StepJudging
from rlanything.errors import ConfigError, TaskError
from rlanything.types import Message, Task, Tool, Trajectory


class ScreenJudging(StepJudging):
    """The task, what was done before, and the step between the screens before and after it."""

    def messages(self, task: Task, trajectory: Trajectory, i: int) -> list[Message]:
        return prompts.judge(task.payload["instruction"], trajectory, i, self.style)


class OsworldDomain(Domain):
    """Tasks on desktops. `dataset.options.backend` says whether they are drawn or real."""

    Options = OsworldOptions
    options: OsworldOptions

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        style = config.dataset.prompt
        self.world = self._make_world()
        self.judging = ScreenJudging(style)
        self.rewriting = FamilyRewriting(style, self.world, self.options.max_instruction)
        self.demonstrating = self.world.demonstrating

    def _make_world(self) -> World:
        config = self.config
        if self.options.backend == "canvas":
            for key, value in (("options.families", self.options.families), ("path", config.dataset.path)):
                if value:
                    raise ConfigError(
                        f"dataset.{key}: found {value!r}, but desktops are drawn, and so are their tasks; it is for "
                        "real ones, dataset.options.backend=local, endpoint or docker"
                    )
            max_step = config.rollout.max_interaction_step
            return CanvasWorld(self.options, config.dataset.prompt, self.images, max_step)
        try:
            from rlanything.domains.osworld.desktops.world import DesktopWorld
        except ImportError as error:
            raise TaskError(
                f"real desktops need packages that are not installed ({error}); install them: "
                "pip install 'rlanything[desktops]'"
            ) from error
        return DesktopWorld(self.options, config.dataset, self.images)

    def tasks(self, split: str) -> list[Task]:
        return self.world.tasks(split)

    def data_files(self, split: str) -> list[Path]:
        return self.world.data_files()

    def make_env(self, task: Task) -> Env:
        return self.world.make_env(task)

    def prepare(self, splits: Sequence[str]) -> None:
        self.world.prepare(splits)
        if self.options.backend != "canvas":
            self._check_desktops()

    def refusal(self, task: Task) -> str:
        return self.world.refusal(task)

    def admit(self, tasks: Sequence[Task], variants: bool, say: Callable[[str], None]) -> bool:
        return self.world.admit(tasks, variants, say)

    def close(self) -> None:
        self.world.close()

    def _check_desktops(self) -> None:
        options, config = self.options, self.config
        boot_s = BOOT_S if options.backend == "local" else options.reset_s
        limit, slowest = config.rollout.env_timeout_s, max(boot_s + options.setup_s, options.evaluate_s)
        if limit <= slowest:
            raise ConfigError(
                f"rollout.env_timeout_s: found {limit:g}, expected more than {slowest:g}, which a desktop's start with "
                "dataset.options.setup_s, or evaluate_s, may take; otherwise a slow one ends before it can say why"
            )
        if options.backend == "endpoint" and (config.cluster.num_env_host or config.experiment.num_node) > 1:
            raise ConfigError(
                "dataset.options.backend=endpoint: every process that plays episodes would use all endpoints at once; "
                "set cluster.num_env_host=1"
            )

    @property
    def capacity(self) -> int | None:
        return self.world.capacity

    @property
    def image_size(self) -> tuple[int, int]:
        return self.world.screen

    def figures(self) -> dict[str, float]:
        return self.world.figures()

    def describe(self, task: Task) -> str:
        return str(task.payload["instruction"])

    def kind(self, task: Task) -> str:
        return self.world.kind(task)

    def script(self, task: Task) -> Iterator[str] | None:
        actions = self.world.script(task)
        return None if actions is None else (action.to_json() for action in actions)

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
        return ParsedAction(action.to_json(), point=point, kind=action.kind)

    def typed_action(self, text: str, observation: Observation) -> str:
        """The action of a line such as `left_click 500 300`, `type hello`, `key ctrl+c` or `terminate success`."""
        return read_typed(text).to_json()
