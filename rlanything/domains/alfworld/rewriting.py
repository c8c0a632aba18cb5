"""ALFWorld's variants: another goal in the same room, proven by the planner, kept as a real game."""

import shutil
from dataclasses import asdict
from pathlib import Path

from rlanything.domains.alfworld.export import write_game
from rlanything.domains.alfworld.goals import read_sentence
from rlanything.domains.alfworld.library import GameLibrary
from rlanything.domains.alfworld.planner import plan
from rlanything.domains.alfworld.prompts import Prompts
from rlanything.domains.alfworld.simulator import Episode
from rlanything.domains.answers import boxed
from rlanything.domains.parts import RejectedTask, Rewriting, variant_of
from rlanything.types import Direction, Message, Task


class AlfworldRewriting(Rewriting):
    """Proposed games wait in `<folder>/temp_train` and move to `<folder>/syn_train` once they are accepted."""

    def __init__(self, prompts: Prompts, games: GameLibrary, folder: Path, max_step: int) -> None:
        """`max_step` is the longest plan that an episode has turns for."""
        self.prompts, self.games, self.max_step = prompts, games, max_step
        self.waiting, self.accepted = folder / "temp_train", folder / "syn_train"

    def messages(self, task: Task, direction: Direction, accuracy: float, critic: str) -> list[Message]:
        """The room's facts, the critic's words, the task as it is now, and the direction."""
        return self.prompts.rewrite(self.games.of(task), direction, accuracy, critic)

    def parse(self, text: str, task: Task, direction: Direction, task_id: str) -> Task:
        """A new goal that fits the room, does not hold at the start, and that the planner reaches in time."""
        proposals = boxed(text)
        if not proposals:
            raise RejectedTask("no_proposal", "no \\boxed{task}")
        game, sentence = self.games.of(task), proposals[-1]
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
        write_game(self.waiting / task.payload["folder"], *self.games.files(task))

    def settle(self, task: Task, accepted: bool) -> None:
        """Move an accepted variant's game to syn_train; remove a dropped variant's. A resumed run may repeat this."""
        folder = task.payload["folder"]
        if accepted:  # written anew, because a step that a crash undid may have dropped it
            write_game(self.accepted / folder, *self.games.files(task))
        if (self.waiting / folder).exists():
            shutil.rmtree(self.waiting / folder)
