"""Episodes that go on from a state of an earlier one: where they begin, and what the tree of a group tells. Pure.

A group's episodes form a tree. Its branches are where episodes begin, so that each turn was sampled once and belongs to
one episode. The episodes that begin in a state estimate the chance of success there. Trees of rollouts give values of
states without a critic (TreeRL, arXiv 2506.11902; SPO, arXiv 2505.23564). Policies that go back to a step that they
find wrong themselves are in arXiv 2605.25507; here the reward model chooses.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rlanything.types import Group, Place, Trajectory, Turn

WAVES = 2  # later episodes can begin where earlier branches came to; each wave waits for the last one
WIDTH = 2  # episodes that begin in one state, besides the one that reached it
BEGINNING = (-1, 0)
"""The state in which all tasks begin: no episode's, after no turn."""

StateKey = tuple[tuple[int, ...], ...]
"""The token ids of all responses so far."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """The state of an episode after its first `num_turn` turns, in which another episode begins."""

    origin: Trajectory
    num_turn: int

    @property
    def turns(self) -> list[Turn]:
        """The turns that led there."""
        return self.origin.turns[: self.num_turn]


def state_key(turns: Sequence[Turn]) -> StateKey:
    """The state that the turns led to."""
    return tuple(tuple(turn.response_ids) for turn in turns)


def choose(group: Group, signals: Mapping[Place, float], num: int, seed: str) -> list[Start | None]:
    """States in which the next `num` episodes begin, `WIDTH` in each. None stands for the beginning of the task.

    The sum of the signals of the steps to a state tells how far it is on its way. Each unsolved episode offers its
    state with the highest sum, and the highest of these are taken. Equal ones are drawn, as are all without signals.
    """
    rng, used = random.Random(seed), Counter(state_key(t.turns[: t.begun]) for t in group.valid if t.begun)
    best: dict[StateKey, tuple[float, float, Start]] = {}
    for t in group.valid:
        reached, total = [], 0.0
        for i in range(1, 0 if t.success else len(t.turns)):
            total += signals.get((t.index, i - 1), 0.0)
            start = Start(origin=t, num_turn=i)
            if used[state_key(start.turns)] < WIDTH:
                reached.append((total, rng.random(), start))
        if reached:
            found = max(reached, key=lambda state: state[:2])
            best.setdefault(state_key(found[2].turns), found)
    starts: list[Start | None] = []
    for key, (_, _, start) in sorted(best.items(), key=lambda item: item[1][:2], reverse=True):
        starts += [start] * (WIDTH - used[key])
    return (starts + [None] * num)[:num]


class Tree:
    """The tree of episodes, and what `reward` says of its states.

    The value of a state is the mean over the episodes that begin in it: the reward of each, or the value of the next
    state on its way in which others begin. The episode that reached it first does not count, because it was chosen for
    its failure. For this reason the value of the beginning is too high: some failures count as what might have been.
    An episode whose origin is not among them is left out.
    """

    def __init__(self, trajectories: Sequence[Trajectory], reward: Callable[[Trajectory], float]) -> None:
        self.reward = reward
        self.episodes: dict[int, Trajectory] = {}
        self._begun: dict[Place, list[int]] = defaultdict(list)
        for t in sorted(trajectories, key=lambda t: t.index):  # an origin has a smaller index than its branches
            if t.origin is None or t.origin in self.episodes:
                self.episodes[t.index] = t
                self._begun[self._start(t)].append(t.index)

    def worths(self) -> dict[Place, float]:
        """By how much each turn's segment changed the value: that of its last state less that of its first.

        A segment lies between two states in which episodes begin; its turns share its worth. An episode's repeated
        turns have none, because they are another one's.
        """
        found: dict[Place, float] = {}
        for e, t in self.episodes.items():
            starts = [t.begun, *self._forks(e)]
            for i, end in zip(starts, [*starts[1:], len(t.turns)], strict=True):
                before = self._value(self._start(t) if i == t.begun else (e, i))
                found |= dict.fromkeys(((e, k) for k in range(i, end)), self._ahead(e, i) - before)
        return found

    def _start(self, t: Trajectory) -> Place:
        """The state in which an episode begins, as the place of the episode whose own turns led there."""
        i, owner = t.begun, t
        while i and owner.origin is not None and i <= owner.begun:
            owner = self.episodes[owner.origin]
        return (owner.index, i) if i else BEGINNING

    def _forks(self, e: int) -> list[int]:
        """After how many turns of an episode others begin."""
        return sorted(i for owner, i in self._begun if owner == e)

    def _value(self, state: Place) -> float:
        samples = [self._ahead(e, state[1]) for e in self._begun[state]]
        return sum(samples) / len(samples)

    def _ahead(self, e: int, i: int) -> float:
        """The value of the fork that an episode comes to after its first i turns, or its reward without one."""
        later = [fork for fork in self._forks(e) if fork > i]
        return self._value((e, later[0])) if later else self.reward(self.episodes[e])
