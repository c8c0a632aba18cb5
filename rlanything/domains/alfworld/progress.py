"""Was a step progress? The planner's word, which credits honest exploration.

The planner knows where everything is, so to it a look into an empty drawer is worth nothing. An agent that does not
know must look: while nothing that is sought has been seen, to go or look where it has not been is progress and to go
where it has been is none, whatever lies hidden there. So the label of a search depends on nothing that no
transcript shows. The labels measure the reward model; the loop's updates never read them (warm starts may:
the reward model's demonstrations speak their words).
"""

from __future__ import annotations

import re

from rlanything.domains.alfworld.model import GoalKind
from rlanything.domains.alfworld.planner import StepLabel, distance, label
from rlanything.domains.alfworld.simulator import NOTHING_HAPPENS, Episode
from rlanything.errors import TaskError

_SEEN = re.compile(r"\ba ([a-z]+) (\d+)")


class Progress:
    """Labels the steps of one episode as they are taken."""

    def __init__(self, episode: Episode) -> None:
        """`episode` must have been reset; it is read after every step. Raises TaskError where it cannot be won."""
        self.episode = episode
        self.remaining = distance(episode)
        if self.remaining is None:
            raise TaskError(
                f"game {episode.game.source}: cannot be won, the planner finds no plan for its goal "
                f"({episode.game.sentence!r}); remove it from the data set"
            )
        self.visited: set[str] = set()
        self.seen: set[tuple[str, str]] = set()
        self.placed: set[tuple[str, str]] = set()

    def step(self, command: str, feedback: str) -> tuple[int, str]:
        """(+1 progress or -1 none, the reason in a few words) of the command that the episode has just taken."""
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
        effect = label(before, self.remaining)
        if effect is StepLabel.SHORTENS:
            return 1, "closer to the goal"
        if effect is StepLabel.LENGTHENS:
            return -1, "undoes progress"
        return -1, "seen before" if not new else "no progress"

    def _sought(self) -> str | None:
        """The kind of thing that must be found next; None while the thing in hand has its place."""
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
