"""What a rewriter may know and ask of a room: its facts in one line, and the goals that it allows."""

from __future__ import annotations

from collections import Counter, defaultdict

from rlanything.domains.alfworld.model import Game, Goal, GoalKind

_TREATED = {GoalKind.CLEAN: "cleanable", GoalKind.HEAT: "heatable", GoalKind.COOL: "coolable"}


def facts_of(game: Game) -> str:
    """Kinds of things that can be taken or switched on and where they are, then the kinds of places."""
    where: dict[str, set[str]] = defaultdict(set)
    number: Counter[str] = Counter()
    for thing in game.objects:
        if not (thing.pickupable or thing.toggleable):
            continue
        number[thing.type.lower()] += 1
        where[thing.type.lower()].update(r.type.lower() for r in game.places(thing))
    things = (
        f"{kind}{_times(number[kind])} in {' '.join(sorted(where[kind])) or 'nothing'}" for kind in sorted(number)
    )
    places = Counter(r.type.lower() for r in game.receptacles)
    return f"{', '.join(things)}. Places: {', '.join(kind + _times(n) for kind, n in sorted(places.items()))}."


def _times(n: int) -> str:
    return f" x{n}" if n > 1 else ""


def goals_of(game: Game) -> list[Goal]:
    """Every goal that the kinds in the room allow (whether one can be won is the planner's to say)."""
    movable = {o.type: o for o in game.objects if o.pickupable}
    number = Counter(o.type for o in game.objects if o.pickupable)
    places = {r.type: r for r in game.receptacles}
    lamps = {o.type for o in game.objects if o.toggleable}
    goals = [Goal(GoalKind.LOOK, kind, None, lamp) for kind in movable for lamp in lamps]
    for kind, thing in movable.items():
        for place, receptacle in places.items():
            if not game.can_hold(receptacle, thing):
                continue
            goals.append(Goal(GoalKind.SIMPLE, kind, place))
            goals += [Goal(k, kind, place) for k, flag in _TREATED.items() if getattr(thing, flag)]
            if number[kind] > 1:
                goals.append(Goal(GoalKind.TWO, kind, place))
    return sorted(goals, key=str)
