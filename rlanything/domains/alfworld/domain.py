"""ALFWorld as a domain: where its games are, how a task is played, judged, rewritten and demonstrated."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from rlanything.config.schema import DatasetConfig
from rlanything.domains.alfworld import prompts
from rlanything.domains.alfworld.backend_textworld import TextWorldEnv
from rlanything.domains.alfworld.demonstrations import conversations
from rlanything.domains.alfworld.env import SimulatorEnv
from rlanything.domains.alfworld.explorer import make_prior
from rlanything.domains.alfworld.export import move_game, regoal, write_game
from rlanything.domains.alfworld.game import parse_game
from rlanything.domains.alfworld.library import GameLibrary
from rlanything.domains.alfworld.model import Game, Goal, GoalKind
from rlanything.domains.alfworld.planner import plan
from rlanything.domains.alfworld.rooms import facts_of
from rlanything.domains.alfworld.sentences import read_sentence
from rlanything.domains.alfworld.simulator import Episode
from rlanything.domains.base import Conversation, Env, Observation, ParsedAction, RejectedTask, Step, TaskError
from rlanything.types import Direction, Message, Task, Trajectory

MAX_GAMES = 4096  # parsed games kept in memory
PRIOR_GAMES = 1000  # games that the explorer's placement prior is counted over


class AlfworldDomain:
    """A task's payload: `source` (the game whose room it uses), `sentence`, `kind`; a variant also has `goal` and
    `folder` (the name of its own game's)."""

    name = "alfworld"

    def __init__(self, config: DatasetConfig, project: str, max_step: int) -> None:
        path = config.path or os.environ.get("ALFWORLD_DATA", "")
        if not path:
            raise TaskError(
                "dataset.path: empty, and ALFWORLD_DATA is not set; set one of them, or make games with "
                "scripts/generate_games.py"
            )
        self.config, self.max_step = config, max_step
        self.root = Path(path)
        self.library = GameLibrary(self.root)
        self.adapted = self.root / "json_2.1.1" / project
        self._game = lru_cache(MAX_GAMES)(self._parse)

    def tasks(self, split: str) -> list[Task]:
        """The games of `train`, `eval_in_distribution` (valid_seen) or `eval_out_of_distribution` (valid_unseen)."""
        return [
            Task(source, {"source": source, "sentence": entry.sentence, "kind": entry.kind})
            for source, entry in self.library.load(split).items()
        ]

    def prepare(self, splits: Sequence[str]) -> None:
        """Read the splits' games."""
        for split in splits:
            self.tasks(split)

    def data_files(self, split: str) -> list[Path]:
        """What the split's games are read from."""
        return self.library.paths(split)

    def make_env(self, task: Task) -> Env:
        """An episode of the task on the configured backend."""
        game = self._task_game(task)
        if self.config.backend == "textworld":
            return TextWorldEnv(self._game_files(task)[0], game)
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

    def system_message(self) -> Message | None:
        """The rules, for models that need them told."""
        return {"role": "system", "content": prompts.POLICY_SYSTEM} if self.config.prompt == "full" else None

    def user_message(self, task: Task, first: Observation, steps: Sequence[Step], history: str) -> Message:
        """Task and room first; then what was answered."""
        return prompts.user_message(first, steps, history, self.config.show_actions)

    def parse_action(self, text: str, observation: Observation) -> ParsedAction:
        """The boxed command."""
        return prompts.parse_action(text, observation, self.config.show_actions)

    def judge_messages(self, task: Task, trajectory: Trajectory, i: int) -> list[Message]:
        """The transcript up to turn i, then the question."""
        return prompts.judge_messages(trajectory, i, self.config.prompt)

    def parse_score(self, text: str) -> tuple[int | None, str]:
        """The boxed score."""
        return prompts.parse_score(text)

    def rewrite_messages(self, task: Task, direction: Direction, accuracy: float, critic: str) -> list[Message]:
        """The room's facts, the critic's words, the task as it is now and the wish."""
        game = self._task_game(task)
        return prompts.rewrite_messages(game.sentence, facts_of(game), direction, accuracy, critic, self.config.prompt)

    def parse_task(self, text: str, task: Task, direction: Direction, task_id: str) -> Task:
        """The proposed variant: a new goal that fits the room, is open at the start, and that the planner proves."""
        sentence = prompts.parse_proposal(text)
        if sentence is None:
            raise RejectedTask("no_proposal", "no \\boxed{task}")
        game = self._task_game(task)
        goal = read_sentence(sentence, game)
        if goal == game.goal:
            raise RejectedTask("unchanged", f"the same goal again: {sentence}")
        walkthrough = plan(Episode(game.with_goal(goal, sentence)))
        if walkthrough is None:
            raise RejectedTask("unsolvable", f"the planner finds no way to {sentence!r}")
        if not walkthrough:
            raise RejectedTask("already_solved", f"holds at the start: {sentence!r}")
        if len(walkthrough) > self.max_step:
            raise RejectedTask("too_long", f"needs {len(walkthrough)} steps of {self.max_step}: {sentence!r}")
        payload = {"source": task.payload["source"], "sentence": sentence, "kind": str(goal.kind), "goal": asdict(goal)}
        variant = Task(task_id, payload | {"folder": task_id.replace("/", "_")}, task.root_id, task.id, direction)
        self._write_variant(variant)
        return variant

    def demonstrations(self, role: str, split: str, seed: int) -> Iterator[Conversation]:
        """Episodes of the explorer, judged and rewritten by the planner's word."""
        games = [self._game(source) for source in sorted(self.library.load(split))]
        config = self.config
        prior = make_prior(games[:PRIOR_GAMES])
        return conversations(role, games, prior, random.Random(seed), self.max_step, config.prompt, config.show_actions)

    def settle_task(self, task: Task, accepted: bool) -> None:
        """Move an accepted variant's game from temp_train to syn_train; remove a dropped one's."""
        waiting, active, folder = self.adapted / "temp_train", self.adapted / "syn_train", task.payload["folder"]
        if accepted and not ((waiting / folder).exists() or (active / folder).exists()):
            self._write_variant(task)  # removed by a step that a crash undid and whose verdict was another
        move_game(waiting / folder, waiting, active if accepted else None)

    def close(self) -> None:
        """Nothing is held."""

    def _parse(self, source: str) -> Game:
        return parse_game(self.library.files(source)[0], source)

    def _task_game(self, task: Task) -> Game:
        game = self._game(task.payload["source"])
        goal = task.payload.get("goal")
        if goal is None:
            return game
        return game.with_goal(Goal(**{**goal, "kind": GoalKind(goal["kind"])}), task.payload["sentence"])

    def _game_files(self, task: Task) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the task's own game.tw-pddl and traj_data.json hold; a variant's are derived from its room's."""
        source = task.payload["source"]
        data, traj = self.library.files(source)
        if "goal" not in task.payload:
            return data, traj
        game = self._task_game(task)
        return regoal(data, traj, game.goal, game.sentence, plan(Episode(game)) or [])

    def _write_variant(self, task: Task) -> None:
        folder = self.adapted / "temp_train" / task.payload["folder"]
        if folder.exists():  # of a step that a crash undid, and that is being done anew
            shutil.rmtree(folder)
        write_game(folder, *self._game_files(task))
