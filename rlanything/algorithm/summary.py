"""Counts and sums of figures stand for a group in the loop, because its episodes stay where they were played. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rlanything.types import Group, Task


@dataclass(kw_only=True)
class Tally:
    """Sums of observations by name. The tallies of many groups add up to that of all."""

    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: Counter[str] = field(default_factory=Counter)
    """Observations of a name, or of a section: that of `section/name`."""
    largest: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, values: Iterable[float]) -> None:
        """Observe values of `name`."""
        for value in values:
            self.sums[name] += value
            self.counts[name] += 1

    def add_section(self, section: str, sums: Mapping[str, float], num: int) -> None:
        """Observe a section `num` times; `sums` are what its names gained."""
        self.counts[section] += num
        for name, value in sums.items():
            self.sums[f"{section}/{name}"] += value

    def observe_largest(self, name: str, values: Iterable[float]) -> None:
        """Keep the largest value of `name`."""
        for value in values:
            self.largest[name] = max(value, self.largest.get(name, value))

    def mean(self, name: str) -> float:
        """The mean of what was observed of `name`; nan without observations."""
        return self.sums[name] / self.counts[name] if self.counts[name] else math.nan

    def section(self, section: str) -> dict[str, float]:
        """Each name of a section by its sum over the section's observations, sorted."""
        names = sorted(name for name in self.sums if name.startswith(f"{section}/"))
        return {name: self.sums[name] / self.counts[section] for name in names}

    @classmethod
    def of_all(cls, tallies: Iterable[Tally]) -> Tally:
        """The tally of all observations."""
        whole = cls()
        for tally in tallies:
            for name, value in tally.sums.items():
                whole.sums[name] += value
            whole.counts.update(tally.counts)
            for name, value in tally.largest.items():
                whole.observe_largest(name, [value])
        return whole


@dataclass(frozen=True, kw_only=True)
class GroupSummary:
    """A group without its episodes."""

    task: Task
    num_valid: int
    """Episodes from the beginning of the task that the infrastructure did not break."""
    num_solved: int
    num_broken: int
    num_branch: int = 0
    """Valid episodes that went on from others."""
    solved_share: float = math.nan
    """Share of all valid episodes that solved the task."""
    fault: str = ""
    """The fault of the first broken episode; empty if none broke."""
    critic: str = ""
    """The rewriting part's summary of the episodes for the rewriter; empty if the task stays as it is."""
    tally: Tally = field(default_factory=Tally)

    @property
    def accuracy(self) -> float:
        """acc(q): share of valid episodes from the beginning that solved the task (nan without any)."""
        return self.num_solved / self.num_valid if self.num_valid else math.nan


def summary(group: Group, tally: Tally, critic: str = "") -> GroupSummary:
    """The summary of a group, with its tally and the rewriter's critic."""
    broken = [t for t in group.trajectories if t.status.is_failure]
    return GroupSummary(
        task=group.task,
        num_valid=len(group.whole),
        num_solved=sum(t.success for t in group.whole),
        num_broken=len(broken),
        num_branch=len(group.valid) - len(group.whole),
        solved_share=group.solved_share,
        fault=f"{broken[0].status}: {broken[0].error}" if broken else "",
        critic=critic,
        tally=tally,
    )
