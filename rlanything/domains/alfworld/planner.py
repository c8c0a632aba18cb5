"""A constructive planner: the shortest way to win from any state, made of fetch, treat, put down and light.

Every command costs one step. A plan is a skeleton of stages (put down what is in the way, take, treat, put), each with
its alternative receptacles; the cheapest combination over all skeletons is the plan. What it leaves out, because no
ALFWorld goal needs it: slicing, closing, and moving things out of a receptacle's way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from rlanything.domains.alfworld.model import Game, GoalKind, Object, Receptacle, State
from rlanything.domains.alfworld.rules import can_treat, is_treated, is_wanted
from rlanything.domains.alfworld.simulator import Episode

_VERBS = {GoalKind.CLEAN: "clean", GoalKind.HEAT: "heat", GoalKind.COOL: "cool"}


class StepLabel(StrEnum):
    """What a step did to the length of the shortest plan."""

    SHORTENS = "shortens"
    KEEPS = "keeps"
    LENGTHENS = "lengthens"
    LOSES = "loses"


def label(before: int | None, after: int | None) -> StepLabel:
    """The label of a step from its distances; None is "cannot be won any more", and a lost game stays as it is."""
    if after is None:
        return StepLabel.KEEPS if before is None else StepLabel.LOSES
    if before is None or after < before:
        return StepLabel.SHORTENS
    return StepLabel.KEEPS if after == before else StepLabel.LENGTHENS


class _Step(NamedTuple):
    """One thing to do at a receptacle, going there and opening it included; "stay" is only to be there."""

    verb: str
    thing: Object
    receptacle: Receptacle


_Skeleton = list[list[_Step]]


def distance(episode: Episode) -> int | None:
    """Steps from here to the win; 0 where it is won, None where it cannot be won any more."""
    commands = plan(episode)
    return None if commands is None else len(commands)


def plan(episode: Episode) -> list[str] | None:
    """Commands that win from the episode's state, fewest first choice; [] where it is won, None where it is lost."""
    if episode.won:
        return []
    state = episode.state
    best: tuple[_Step, ...] | None = None
    best_cost = 1 << 30
    for skeleton in _Room(episode.game, state).skeletons():
        found = _cheapest(skeleton, state.location, state.opened, best_cost)
        if found is not None:
            best_cost, best = found
    return None if best is None else _commands(best, state)


def _cheapest(skeleton: _Skeleton, location: str, opened: int, limit: int) -> tuple[int, tuple[_Step, ...]] | None:
    """The cheapest choice of one step per stage, if cheaper than `limit`; the first of equals."""
    if not skeleton:
        return (0, ()) if limit > 0 else None
    # Every later stage costs a step at least, but for a last "stay", which may be free.
    later = max(0, len(skeleton) - 2)
    best = None
    for step in skeleton[0]:
        cost, now_opened = _cost(step, location, opened)
        if cost + later >= limit:
            continue
        rest = _cheapest(skeleton[1:], step.receptacle.location, now_opened, limit - cost)
        if rest is not None:
            limit = cost + rest[0]
            best = (limit, (step, *rest[1]))
    return best


def _cost(step: _Step, location: str, opened: int) -> tuple[int, int]:
    """(commands that a step takes, the receptacles open afterwards)."""
    cost = (step.receptacle.location != location) + (step.verb != "stay")
    bit = 1 << step.receptacle.index
    if step.verb in ("take", "move") and step.receptacle.openable and not opened & bit:
        return cost + 1, opened | bit
    return cost, opened


def _commands(steps: tuple[_Step, ...], state: State) -> list[str]:
    location, opened = state.location, state.opened
    commands = []
    for step in steps:
        verb, thing, receptacle = step
        if receptacle.location != location:
            commands.append(f"go to {receptacle.name}")
        _, now_opened = _cost(step, location, opened)
        if now_opened != opened:
            commands.append(f"open {receptacle.name}")
        location, opened = receptacle.location, now_opened
        if verb == "use":
            commands.append(f"use {thing.name}")
        elif verb != "stay":
            joint = {"take": "from", "move": "to"}.get(verb, "with")
            commands.append(f"{verb} {thing.name} {joint} {receptacle.name}")
    return commands


class _Room:
    """A state as the planner sees it: what is wanted, where it may go, and which receptacles differ in any way."""

    def __init__(self, game: Game, state: State) -> None:
        self.game, self.state, self.goal = game, state, game.goal
        self.verb = _VERBS.get(game.goal.kind)
        self.wanted = self._wanted()
        sources = [game.receptacles[r] for thing in self.wanted for r in state.places[thing.index]]
        self.lamps = [o for o in game.objects if o.type == game.goal.lamp_type and o.toggleable]
        lit = [game.receptacles[r] for lamp in self.lamps for r in state.places[lamp.index]]
        self.stations = [r for r in game.receptacles if self.verb and self.wanted and self._treats(r)]
        self.special = {state.location, *(r.location for r in (*sources, *lit, *self.stations))}
        types = (game.goal.receptacle_type or "", game.goal.object_type)
        fits = types in game.accepts
        self.targets = self._distinct([r for r in game.receptacles if fits and r.type == game.goal.receptacle_type])
        self.special.update(r.location for r in self.targets)
        self.drops: list[_Step] = []
        if state.held is not None:
            held = game.objects[state.held]
            self.drops = [
                _Step("move", held, r) for r in self._distinct([r for r in game.receptacles if game.can_hold(r, held)])
            ]

    def _treats(self, receptacle: Receptacle) -> bool:
        return can_treat(self.game, self.verb or "", self.wanted[0], receptacle)

    def _wanted(self) -> list[Object]:
        """Objects that the goal may use; of those that are alike in every way only as many as it needs."""
        copies: Counter[tuple[object, ...]] = Counter()
        wanted = []
        for thing in self.game.objects:
            o = thing.index
            if not is_wanted(thing, self.goal) or not (self.state.places[o] or o == self.state.held):
                continue
            alike = (o == self.state.held, self.state.places[o], is_treated(o, self.state, self.goal), thing.pickupable)
            copies[alike] += 1
            if copies[alike] <= (2 if self.goal.kind is GoalKind.TWO else 1):
                wanted.append(thing)
        return wanted

    def _distinct(self, receptacles: list[Receptacle]) -> list[Receptacle]:
        """Those at places that matter, and of the rest one that is accessible and one that must be opened."""
        kept, seen = [], set()
        for r in receptacles:
            closed = r.openable and not self.state.opened >> r.index & 1
            if r.location in self.special:
                kept.append(r)
            elif closed not in seen:
                seen.add(closed)
                kept.append(r)
        return kept

    def skeletons(self) -> Iterator[_Skeleton]:
        """All ways to win that differ in their objects; each stage lists the receptacles that will do."""
        if self.goal.kind is GoalKind.LOOK:
            yield from self._look()
        elif self.goal.kind is GoalKind.TWO:
            yield from self._put_two()
        else:
            yield from self._put_one()

    def _acquire(self, thing: Object) -> Iterator[_Skeleton]:
        """Ways to hold an object: at once, or taken from each of its places, after what is held was put down."""
        if self.state.held == thing.index:
            yield []
        elif thing.pickupable:
            put_down = [] if self.state.held is None else [self.drops]
            for r in self.state.places[thing.index]:
                yield [*put_down, [_Step("take", thing, self.game.receptacles[r])]]

    def _put_one(self) -> Iterator[_Skeleton]:
        for thing in self.wanted:
            puts = [_Step("move", thing, r) for r in self.targets]
            treat = self.verb is not None and not is_treated(thing.index, self.state, self.goal)
            for prefix in self._acquire(thing):
                if not treat:
                    yield [*prefix, puts]
                    continue
                # An object in two receptacles at once is taken out of one only: it may be at its goal while held.
                source = prefix[-1][0].receptacle.index if prefix else None
                rest = [self.game.receptacles[r] for r in self.state.places[thing.index] if r != source]
                placed = any(r.type == self.goal.receptacle_type for r in rest)
                treats = [_Step(self.verb or "", thing, r) for r in self.stations]
                yield [*prefix, treats] if placed else [*prefix, treats, puts]

    def _put_two(self) -> Iterator[_Skeleton]:
        """Both objects into one receptacle; what is there already stays, and what is held goes first."""
        game, places = self.game, self.state.places
        for target in self.targets:
            present = any(is_wanted(game.objects[o], self.goal) for o in self.state.contents[target.index])
            missing = [o for o in self.wanted if target.index not in places[o.index]]
            for first in [o for o in missing if o.index == self.state.held] or missing:
                for prefix in self._acquire(first):
                    once = [*prefix, [_Step("move", first, target)]]
                    if present:
                        yield once
                        continue
                    for second in missing:
                        if second is not first and second.pickupable:
                            takes = [_Step("take", second, game.receptacles[r]) for r in places[second.index]]
                            yield [*once, takes, [_Step("move", second, target)]]

    def _look(self) -> Iterator[_Skeleton]:
        """The object in hand, beside a lamp that was turned on."""
        lights = [
            self._light(lamp, self.game.receptacles[r]) for lamp in self.lamps for r in self.state.places[lamp.index]
        ]
        for thing in self.wanted:
            for prefix in self._acquire(thing):
                if all(lamp.index != self.state.held for lamp in self.lamps):
                    yield [*prefix, lights]
                    continue
                # What must be put down is itself a lamp: it shines where it was put.
                for drop in prefix[0]:
                    yield [[drop], *prefix[1:], [*lights, self._light(drop.thing, drop.receptacle)]]

    def _light(self, lamp: Object, receptacle: Receptacle) -> _Step:
        return _Step("stay" if self.state.toggled >> lamp.index & 1 else "use", lamp, receptacle)
