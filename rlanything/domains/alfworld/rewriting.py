"""ALFWorld's variants: another goal in the same room, proven by the planner, kept as a real game."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

from rlanything.domains.alfworld import prompts
from rlanything.domains.alfworld.export import move_game, write_game
from rlanything.domains.alfworld.games import Games
from rlanything.domains.alfworld.planner import plan
from rlanything.domains.alfworld.rooms import facts_of
from rlanything.domains.alfworld.sentences import read_sentence
from rlanything.domains.alfworld.simulator import Episode
from rlanything.domains.parts import RejectedTask, Rewriting, variant_of
from rlanything.types import Direction, Message, Task


class AlfworldRewriting(Rewriting):
    """Proposed games wait in `<folder>/temp_train` and move to `<folder>/syn_train` once they are accepted."""

    def __init__(self, style: str, games: Games, folder: Path, max_step: int) -> None:
        """`max_step` is the longest plan that an episode has turns for."""
        self.style, self.games, self.max_step = style, games, max_step
        self.waiting, self.accepted = folder / "temp_train", folder / "syn_train"

    def messages(self, task: Task, direction: Direction, accuracy: float, critic: str) -> list[Message]:
        """The room's facts, the critic's words, the task as it is now, and the direction."""
        game = self.games.of(task)
        return prompts.rewrite_messages(game.sentence, facts_of(game), direction, accuracy, critic, self.style)

    def parse(self, text: str, task: Task, direction: Direction, task_id: str) -> Task:
        """A new goal that fits the room, does not hold at the start, and that the planner reaches in time."""
        sentence = prompts.parse_proposal(text)
        if sentence is None:
            raise RejectedTask("no_proposal", "no \\boxed{task}")
        game = self.games.of(task)
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
        return variant_of(task, payload | {"folder": task_id.replace("/", "_")}, direction, task_id)

    def open(self, task: Task) -> None:
        """Write the variant's game."""
        folder = self.waiting / task.payload["folder"]
        if folder.exists():  # left by a step that a crash undid and that is done anew
            shutil.rmtree(folder)
        write_game(folder, *self.games.files(task))

    def settle(self, task: Task, accepted: bool) -> None:
        """Move an accepted variant's game from temp_train to syn_train; remove a dropped variant's."""
        folder = task.payload["folder"]
        if accepted and not ((self.waiting / folder).exists() or (self.accepted / folder).exists()):
            self.open(task)  # a step that a crash undid had dropped it
        move_game(self.waiting / folder, self.waiting, self.accepted if accepted else None)
