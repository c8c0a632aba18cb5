"""From tasks to games: an original's is in the library, a variant's is its room's with another goal."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from rlanything.domains.alfworld.export import regoal
from rlanything.domains.alfworld.game import parse_game
from rlanything.domains.alfworld.library import GameLibrary
from rlanything.domains.alfworld.model import Game, Goal, GoalKind
from rlanything.domains.alfworld.planner import plan
from rlanything.domains.alfworld.simulator import Episode
from rlanything.types import Task

MAX_GAMES = 4096  # parsed games kept in memory


class Games:
    """The games of one data folder.

    A task's payload has `source` (the game whose room it uses), `sentence` and `kind`; a variant's also has `goal` and
    `folder` (the name of its own game's folder).
    """

    def __init__(self, root: Path) -> None:
        self.library = GameLibrary(root)
        self.by_source = lru_cache(MAX_GAMES)(self._parse)

    def of(self, task: Task) -> Game:
        """The game that the task is played in. Raises TaskError."""
        game = self.by_source(task.payload["source"])
        goal = task.payload.get("goal")
        if goal is None:
            return game
        return game.with_goal(Goal(**{**goal, "kind": GoalKind(goal["kind"])}), task.payload["sentence"])

    def files(self, task: Task) -> tuple[dict[str, Any], dict[str, Any]]:
        """The contents of the task's game.tw-pddl and traj_data.json; a variant's are derived from its room's."""
        data, traj = self.library.files(task.payload["source"])
        if "goal" not in task.payload:
            return data, traj
        game = self.of(task)
        return regoal(data, traj, game.goal, game.sentence, plan(Episode(game)) or [])

    def _parse(self, source: str) -> Game:
        return parse_game(self.library.files(source)[0], source)
