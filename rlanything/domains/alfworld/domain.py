"""ALFWorld as a domain: where its games are, how a task is played, and its parts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rlanything.config.schema import Config
from rlanything.domains.alfworld import prompts
from rlanything.domains.alfworld.backend_textworld import TextWorldEnv
from rlanything.domains.alfworld.demonstrations import AlfworldDemonstrating
from rlanything.domains.alfworld.env import SimulatorEnv
from rlanything.domains.alfworld.games import Games
from rlanything.domains.alfworld.options import AlfworldOptions
from rlanything.domains.alfworld.rewriting import AlfworldRewriting
from rlanything.domains.base import Domain, Env, Observation, ParsedAction, Step
from rlanything.domains.parts import StepJudging
from rlanything.errors import TaskError
from rlanything.types import Message, Task, Trajectory


class AlfworldJudging(StepJudging):
    """The transcript of commands and answers, then the question."""

    def messages(self, task: Task, trajectory: Trajectory, i: int) -> list[Message]:
        """The prompt for turn i."""
        return prompts.judge_messages(trajectory, i, self.style)


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
        self._root, max_step, style = Path(path), config.rollout.max_interaction_step, config.dataset.prompt
        self.games = Games(self._root)
        adapted = self._root / "json_2.1.1" / (self.options.project or config.experiment.name)
        self.judging = AlfworldJudging(style)
        self.rewriting = AlfworldRewriting(style, self.games, adapted, max_step)
        self.demonstrating = AlfworldDemonstrating(style, self.games, max_step, self.options.show_actions)

    @property
    def root(self) -> Path:
        """The folder of games."""
        return self._root

    def tasks(self, split: str) -> list[Task]:
        """The games of a split. Raises TaskError if there are none."""
        return [
            Task(id=source, payload={"source": source, "sentence": entry.sentence, "kind": entry.kind})
            for source, entry in self.games.library.load(split).items()
        ]

    def data_files(self, split: str) -> list[Path]:
        """What the split's games are read from."""
        return self.games.library.paths(split)

    def make_env(self, task: Task) -> Env:
        """An episode of the task on the configured backend."""
        game = self.games.of(task)
        if self.options.backend == "textworld":
            return TextWorldEnv(self.games.files(task)[0], game)
        return SimulatorEnv(game)

    def describe(self, task: Task) -> str:
        """The task sentence."""
        return str(task.payload["sentence"])

    def kind(self, task: Task) -> str:
        """One of ALFWorld's six task types."""
        return str(task.payload["kind"])

    def identity(self, task: Task) -> str:
        """The sentence in its room."""
        return f"{task.payload['source']}: {task.payload['sentence']}"

    def opening(self, task: Task, first: Observation) -> list[Message]:
        """The rules, for models that need them told; then task and room."""
        return prompts.opening_messages(first, self.config.dataset.prompt, self.options.show_actions)

    def answer(self, observation: Observation) -> list[Message]:
        """What the room answered, with commands if they are shown."""
        return prompts.answer_messages(observation, self.options.show_actions)

    def retold(self, task: Task, first: Observation, steps: Sequence[Step]) -> list[Message]:
        """Task, room, all commands with their answers, and the commands that are admissible now."""
        return prompts.retold_messages(first, steps, self.config.dataset.prompt, self.options.show_actions)

    def parse_action(self, text: str, observation: Observation) -> ParsedAction:
        """The boxed command."""
        return prompts.parse_action(text, observation, self.options.show_actions)

    def typed_action(self, text: str, observation: Observation) -> str:
        """The command, or the one with this number if all are listed."""
        return self.parse_action(f"\\boxed{{{text}}}", observation).action or text
