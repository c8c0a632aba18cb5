"""ALFWorld as a domain: where its games are, how a task is played, and its parts."""

import os
from collections.abc import Sequence
from pathlib import Path

from rlanything.config.schema import Config
from rlanything.domains.alfworld.backend_textworld import TextWorldEnv
from rlanything.domains.alfworld.demonstrations import AlfworldDemonstrating
from rlanything.domains.alfworld.env import SimulatorEnv
from rlanything.domains.alfworld.library import GameLibrary
from rlanything.domains.alfworld.options import AlfworldOptions
from rlanything.domains.alfworld.prompts import Prompts
from rlanything.domains.alfworld.rewriting import AlfworldRewriting
from rlanything.domains.base import Domain, Env, Observation, ParsedAction, Step
from rlanything.domains.parts import StepJudging
from rlanything.errors import TaskError
from rlanything.types import Message, Task, Trajectory


class AlfworldJudging(StepJudging):
    """The transcript of commands and answers, then the question."""

    def __init__(self, prompts: Prompts) -> None:
        super().__init__(prompts.style)
        self.prompts = prompts

    def messages(self, task: Task, trajectory: Trajectory, i: int) -> list[Message]:
        return self.prompts.judge(trajectory, i)


class AlfworldDomain(Domain):
    """Games of `train`, `eval_in_distribution` (valid_seen) and `eval_out_of_distribution` (valid_unseen)."""

    Options = AlfworldOptions
    options: AlfworldOptions

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        path = config.dataset.path or os.environ.get("ALFWORLD_DATA", "")
        if not path:
            raise TaskError(
                "dataset.path: empty, and ALFWORLD_DATA is not set; set one of them, or make games with "
                "scripts/generate_games.py"
            )
        self.games, max_step = GameLibrary(Path(path)), config.rollout.max_interaction_step
        self.prompts = Prompts(config.dataset.prompt, self.options.show_actions, self.options.first_number)
        adapted = self.games.root / "json_2.1.1" / (self.options.project or config.experiment.name)
        self.judging = AlfworldJudging(self.prompts)
        self.rewriting = AlfworldRewriting(self.prompts, self.games, adapted, max_step)
        self.demonstrating = AlfworldDemonstrating(self.prompts, self.games, max_step)

    @property
    def root(self) -> Path:
        return self.games.root

    def tasks(self, split: str) -> list[Task]:
        """The games of a split. Raises TaskError if there are none."""
        return [
            Task(id=source, payload={"source": source, "sentence": entry.sentence, "kind": entry.kind})
            for source, entry in self.games.load(split).items()
        ]

    def data_files(self, split: str) -> list[Path]:
        return self.games.paths(split)

    def make_env(self, task: Task) -> Env:
        game = self.games.of(task)
        if self.options.backend == "textworld":
            return TextWorldEnv(self.games.files(task)[0], game)
        return SimulatorEnv(game)

    def describe(self, task: Task) -> str:
        return str(task.payload["sentence"])

    def kind(self, task: Task) -> str:
        """One of ALFWorld's six task types."""
        return str(task.payload["kind"])

    def identity(self, task: Task) -> str:
        """The sentence in its room."""
        return f"{task.payload['source']}: {task.payload['sentence']}"

    def opening(self, task: Task, first: Observation) -> list[Message]:
        return self.prompts.opening(first)

    def answer(self, observation: Observation) -> list[Message]:
        return self.prompts.answer(observation)

    def retold(self, task: Task, first: Observation, steps: Sequence[Step]) -> list[Message]:
        return self.prompts.retold(first, steps)

    def parse_action(self, text: str, observation: Observation) -> ParsedAction:
        return self.prompts.parse_action(text, observation)

    def typed_action(self, text: str, observation: Observation) -> str:
        """A command, or its number if all are listed."""
        return self.parse_action(f"\\boxed{{{text}}}", observation).action or text
