"""Labels each step of an episode as progress or none, by the planner, in a way that credits honest exploration.

The planner knows where everything is, so a look into an empty drawer brings it no nearer. An agent must look. So while
no sought object has been seen, going to or opening a new place is progress, and a known place is none: these labels
depend only on the transcript. The labels measure the reward model, and its demonstrations are made from them. The
loop's updates never read them.
"""

import re

from rlanything.domains.alfworld.model import GoalKind
from rlanything.domains.alfworld.planner import distance
from rlanything.domains.alfworld.simulator import NOTHING_HAPPENS, Episode
from rlanything.errors import TaskError

_SEEN = re.compile(r"\ba ([a-z]+) (\d+)")


class Progress:
    """Labels the steps of one episode as they are taken."""

    def __init__(self, episode: Episode) -> None:
        """Follow an episode that has been reset. Raises TaskError if it cannot be won."""
        self.episode = episode
        self.remaining = distance(episode)
        if self.remaining is None:
            raise TaskError(
                f"game {episode.game.source}: the planner finds no way to win it ({episode.game.sentence!r}); remove "
                "it from the data set"
            )
        self.visited: set[str] = set()
        self.seen: set[tuple[str, str]] = set()
        self.placed: set[tuple[str, str]] = set()

    def step(self, command: str, feedback: str) -> tuple[int, str]:
        """Label the command that the episode has just taken: (1, reason) for progress, (-1, reason) for none."""
        before, self.remaining = self.remaining, distance(self.episode)
        sought = self._sought()
        known = any(kind == sought and (kind, n) not in self.placed for kind, n in self.seen)
        new = command not in self.visited
        self._note(command, feedback)
        if feedback == NOTHING_HAPPENS:
            return -1, "does nothing"
        if self.remaining is None:
            return -1, "makes the task impossible"
        if sought and not known and command.startswith(("go to ", "open ")):
            return (1, "looks at a new place") if new else (-1, "seen before")
        if before is None or self.remaining < before:
            return 1, "closer to the goal"
        if self.remaining > before:
            return -1, "undoes progress"
        return -1, "seen before" if not new else "no progress"

    def _sought(self) -> str | None:
        """Return the kind of object that must be found next, or None if the object in hand only has to be put."""
        goal, game = self.episode.game.goal, self.episode.game
        held = self.episode.state.held
        if held is None or game.objects[held].type != goal.object_type:
            return goal.object_type.lower()
        return (goal.lamp_type or "").lower() if goal.kind is GoalKind.LOOK else None

    def _note(self, command: str, feedback: str) -> None:
        if feedback == NOTHING_HAPPENS:
            return
        if command.startswith(("go to ", "open ")):
            self.visited.add(command)
            self.seen.update(_SEEN.findall(feedback.split("you see", 1)[-1]))
        elif command.startswith("move "):
            kind, _, number = command.removeprefix("move ").partition(" to ")[0].rpartition(" ")
            self.placed.add((kind, number))
