"""The answers of a task's episodes put to a vote, and the best program by its unit tests. Pure."""

from collections import Counter
from collections.abc import Callable

from rlanything.types import Group, Task, Trajectory


def majority(group: Group, same: Callable[[Task, str], str]) -> float:
    """How often the commonest answer is right: 0 or 1, or a share if answers tie.

    Answers are one if `same` gives one name for them, or if both are right. An episode without an answer has no vote.
    """
    given = [(t.success, t.score.answer) for t in group.valid if t.score is not None and t.score.answer]
    votes = Counter((right, "" if right else same(group.task, answer)) for right, answer in given)
    commonest = [right for (right, _), n in votes.items() if n == max(votes.values())]
    return sum(commonest) / max(1, len(commonest))


def best(group: Group) -> float:
    """How often the program that passes most of the group's unit tests is correct; those that tie share."""

    def passed(trajectory: Trajectory) -> int:
        return sum(s == 1 for j in group.shared for (episode, _), s in j.scores.items() if episode == trajectory.index)

    most = max(map(passed, group.valid))
    solved = [t.success for t in group.valid if passed(t) == most]
    return sum(solved) / len(solved)
