"""Describes a room to the rewriter: its facts in one line, and the goals that it allows."""

from __future__ import annotations

from collections import Counter, defaultdict

from rlanything.domains.alfworld.model import Game, Goal, GoalKind
from rlanything.domains.alfworld.rules import TREATMENTS


def facts_of(game: Game) -> str:
    """List the kinds of objects that can be taken or switched on, with where they are, then the kinds of places."""
    holders: dict[str, set[str]] = defaultdict(set)
    count: Counter[str] = Counter()
    for thing in game.objects:
        if not (thing.pickupable or thing.toggleable):
            continue
        count[thing.type.lower()] += 1
        holders[thing.type.lower()].update(r.type.lower() for r in game.places(thing))
    things = (
        f"{kind}{_times(count[kind])} in {' '.join(sorted(holders[kind])) or 'nothing'}" for kind in sorted(count)
    )
    places = Counter(r.type.lower() for r in game.receptacles)
    return f"{', '.join(things)}. Places: {', '.join(kind + _times(n) for kind, n in sorted(places.items()))}."


def _times(n: int) -> str:
    return f" x{n}" if n > 1 else ""


def goals_of(game: Game) -> list[Goal]:
    """List every goal that the types in the room allow. The planner decides which of them can be won."""
    movable = {o.type: o for o in game.objects if o.pickupable}
    count = Counter(o.type for o in game.objects if o.pickupable)
    places = {r.type: r for r in game.receptacles}
    lamps = {o.type for o in game.objects if o.toggleable}
    goals = [Goal(GoalKind.LOOK, kind, None, lamp) for kind in movable for lamp in lamps]
    for kind, thing in movable.items():
        for place, receptacle in places.items():
            if not game.can_hold(receptacle, thing):
                continue
            goals.append(Goal(GoalKind.SIMPLE, kind, place))
            goals += [Goal(k, kind, place) for k, t in TREATMENTS.items() if getattr(thing, t.ability)]
            if count[kind] > 1:
                goals.append(Goal(GoalKind.TWO, kind, place))
    return sorted(goals, key=str)
