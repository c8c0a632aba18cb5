"""Plans the shortest way to win from any state.

A plan follows a skeleton: a list of stages (put down the wrong object, take, treat, put), each with the receptacles
that would do. The planner enumerates the skeletons of a state and chooses the cheapest combination of receptacles. It
knows no slicing, no closing, and no moving of objects out of the way, because no ALFWorld goal needs them.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from rlanything.domains.alfworld.model import Game, GoalKind, Object, Receptacle, State
from rlanything.domains.alfworld.rules import TREATMENTS, can_treat, is_treated, is_wanted
from rlanything.domains.alfworld.simulator import Episode


class _Step(NamedTuple):
    """A command at a receptacle, including going there and opening it. "stay" means only to be there."""

    verb: str
    thing: Object
    receptacle: Receptacle


_Skeleton = list[list[_Step]]


def distance(episode: Episode) -> int | None:
    """Count the steps of the shortest win: 0 if the episode is won, None if it cannot be won any more."""
    commands = plan(episode)
    return None if commands is None else len(commands)


def plan(episode: Episode) -> list[str] | None:
    """Return the fewest commands that win: [] if the episode is won, None if it cannot be won any more."""
    if episode.won:
        return []
    state = episode.state
    best: tuple[_Step, ...] | None = None
    limit = 1 << 30
    for skeleton in _Room(episode.game, state).skeletons():
        cheaper = _cheapest(skeleton, state.location, state.opened, limit)
        if cheaper is not None:
            limit, best = cheaper
    return None if best is None else _commands(best, state)


def _cheapest(skeleton: _Skeleton, location: str, opened: int, limit: int) -> tuple[int, tuple[_Step, ...]] | None:
    """Choose one step per stage: (cost, steps) of the cheapest choice, or None if all cost `limit` or more.

    The first of equals is chosen. `opened` is the bit mask of open receptacles.
    """
    if not skeleton:
        return (0, ()) if limit > 0 else None
    # A lower bound: every later stage costs at least one command, except a "stay" at the end, which may be free.
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
    """Return the number of commands that a step takes, and the receptacles that are open afterwards."""
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
            preposition = {"take": "from", "move": "to"}.get(verb, "with")
            commands.append(f"{verb} {thing.name} {preposition} {receptacle.name}")
    return commands


class _Room:
    """The planner's view of a state: the objects that the goal may use, and the receptacles that are worth trying."""

    def __init__(self, game: Game, state: State) -> None:
        self.game, self.state, self.goal = game, state, game.goal
        self.treatment = TREATMENTS.get(game.goal.kind)
        self.wanted = self._wanted()
        self.lamps = [o for o in game.objects if o.type == game.goal.lamp_type and o.toggleable]
        self.stations: list[Receptacle] = []
        if self.treatment and self.wanted:
            self.stations = [r for r in game.receptacles if can_treat(game, self.treatment, self.wanted[0], r)]
        useful = [game.receptacles[r] for thing in (*self.wanted, *self.lamps) for r in state.places[thing.index]]
        self.special = {state.location, *(r.location for r in (*useful, *self.stations))}
        fits = (self.goal.receptacle_type, self.goal.object_type) in game.accepts
        self.targets = self._distinct([r for r in game.receptacles if fits and r.type == self.goal.receptacle_type])
        self.special.update(r.location for r in self.targets)
        self.drops: list[_Step] = []
        if state.held is not None:
            held = game.objects[state.held]
            accepting = [r for r in game.receptacles if game.can_hold(r, held)]
            self.drops = [_Step("move", held, r) for r in self._distinct(accepting)]

    def _wanted(self) -> list[Object]:
        """List the objects that the goal may use. Of objects that are alike it lists only as many as the goal needs."""
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
        """Keep the receptacles at special locations, and of the rest one that is accessible and one that is closed."""
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
        """Yield the ways to win that differ in their objects. Each stage lists the receptacles that would do."""
        if self.goal.kind is GoalKind.LOOK:
            yield from self._look()
        elif self.goal.kind is GoalKind.TWO:
            yield from self._put_two()
        else:
            yield from self._put_one()

    def _acquire(self, thing: Object) -> Iterator[_Skeleton]:
        """Yield the ways to hold an object: now, or after putting down what is held and taking it from a place."""
        if self.state.held == thing.index:
            yield []
        elif thing.pickupable:
            put_down = [] if self.state.held is None else [self.drops]
            for r in self.state.places[thing.index]:
                yield [*put_down, [_Step("take", thing, self.game.receptacles[r])]]

    def _put_one(self) -> Iterator[_Skeleton]:
        for thing in self.wanted:
            puts = [_Step("move", thing, r) for r in self.targets]
            for prefix in self._acquire(thing):
                if self.treatment is None or is_treated(thing.index, self.state, self.goal):
                    yield [*prefix, puts]
                    continue
                # An object in two receptacles at once is taken out of one only, so it may be at its goal while held.
                source = prefix[-1][0].receptacle.index if prefix else None
                rest = [self.game.receptacles[r] for r in self.state.places[thing.index] if r != source]
                placed = any(r.type == self.goal.receptacle_type for r in rest)
                treats = [_Step(self.treatment.verb, thing, r) for r in self.stations]
                yield [*prefix, treats] if placed else [*prefix, treats, puts]

    def _put_two(self) -> Iterator[_Skeleton]:
        """Yield the ways to put both objects into one receptacle. An object that is held goes first."""
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
        """Yield the ways to hold the object where a lamp stands that is on."""
        receptacles, places = self.game.receptacles, self.state.places
        lights = [self._light(lamp, receptacles[r]) for lamp in self.lamps for r in places[lamp.index]]
        for thing in self.wanted:
            for prefix in self._acquire(thing):
                if all(lamp.index != self.state.held for lamp in self.lamps):
                    yield [*prefix, lights]
                    continue
                # The object to put down is itself a lamp, which can then be lit where it was put.
                for drop in prefix[0]:
                    yield [[drop], *prefix[1:], [*lights, self._light(drop.thing, drop.receptacle)]]

    def _light(self, lamp: Object, receptacle: Receptacle) -> _Step:
        return _Step("stay" if self.state.toggled >> lamp.index & 1 else "use", lamp, receptacle)
