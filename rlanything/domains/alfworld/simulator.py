"""Simulates an ALFWorld episode in plain Python: it answers word for word what TextWorld answers.

A command is parsed and checked against the state directly. TextWorld lists the admissible commands at every step;
this simulator lists them on request. Sources: alfworld's alfred.pddl (what is possible) and alfred.twl2 (the text).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rlanything.domains.alfworld.model import Game, GoalKind, Object, Receptacle
from rlanything.domains.alfworld.rules import KNIVES, TREATMENTS, Treatment, can_treat, goal_met

NOTHING_HAPPENS: Final = "Nothing happens."


def listing(items: list[str]) -> str:
    """Enumerate items as the grammar does: "a, b, and c", or "nothing"."""
    if len(items) < 2:
        return items[0] if items else "nothing"
    return f"{', '.join(items[:-1])}, and {items[-1]}"


class Episode:
    """One episode of a game. `won` says whether the goal is met now; as in TextWorld, a win can be lost again."""

    __slots__ = ("game", "state", "won")

    def __init__(self, game: Game) -> None:
        self.game = game
        self.state = game.initial.copy()
        self.won = goal_met(game, self.state)

    def reset(self) -> str:
        """Start anew. Returns the first observation: what is in the room, and the task."""
        self.state = self.game.initial.copy()
        self.won = goal_met(self.game, self.state)
        return f"-= Welcome to TextWorld, ALFRED! =-\n\n{self._look(first=True)}\n\n{self.game.task_line}"

    def clone(self) -> Episode:
        """Make an independent episode in the same state."""
        new = Episode.__new__(Episode)
        new.game, new.state, new.won = self.game, self.state.copy(), self.won
        return new

    def step(self, command: str) -> tuple[str, bool]:
        """Carry out a command and return (feedback, won).

        A command that is not admissible changes nothing and is answered by NOTHING_HAPPENS.
        """
        verb, _, rest = command.strip().partition(" ")
        handler = _HANDLERS.get(verb)
        feedback = handler(self, rest) if handler is not None else None
        return (NOTHING_HAPPENS if feedback is None else feedback), self.won

    @property
    def admissible(self) -> list[str]:
        """All commands that do something in the current state, sorted."""
        game, state = self.game, self.state
        here = game.at_location.get(state.location, ())
        commands = ["help", "inventory", "look"]
        commands += [f"go to {r.name}" for r in game.receptacles if r.location != state.location]
        held = None if state.held is None else game.objects[state.held]
        if held is not None:
            commands.append(f"examine {held.name}")
            if held.type in KNIVES:
                commands += [f"slice {o.name} with {held.name}" for o in game.objects if self._can_slice(o)]
        for receptacle in here:
            name, is_open = receptacle.name, bool(state.opened >> receptacle.index & 1)
            commands.append(f"examine {name}")
            if receptacle.openable:
                commands.append(f"{'close' if is_open else 'open'} {name}")
            for o in state.contents[receptacle.index]:
                thing = game.objects[o]
                if held is None and thing.pickupable and self._reachable(receptacle):
                    commands.append(f"take {thing.name} from {name}")
                if thing.toggleable:
                    commands.append(f"use {thing.name}")
            if held is not None:
                if self._reachable(receptacle) and game.can_hold(receptacle, held):
                    commands.append(f"move {held.name} to {name}")
                possible = [t.verb for t in TREATMENTS.values() if can_treat(game, t, held, receptacle)]
                commands += [f"{verb} {held.name} with {name}" for verb in possible]
        return sorted(set(commands))

    # Lookups: a receptacle or an object, if the agent can act on it.

    def _here(self, name: str) -> Receptacle | None:
        receptacle = self.game.receptacle_named.get(name)
        return receptacle if receptacle is not None and receptacle.location == self.state.location else None

    def _reachable(self, receptacle: Receptacle) -> bool:
        return not receptacle.openable or bool(self.state.opened >> receptacle.index & 1)

    def _can_slice(self, thing: Object) -> bool:
        return thing.sliceable and self.state.location in self.state.locations[thing.index]

    def _held_as(self, name: str) -> Object | None:
        held = self.state.held
        return self.game.objects[held] if held is not None and self.game.objects[held].name == name else None

    # Descriptions.

    def _look(self, first: bool = False) -> str:
        game, state = self.game, self.state
        here = game.at_location.get(state.location)
        if here is None:
            # The grammar's `list_appliances` lists every receptacle in the intro, but none in a later look.
            seen = [f"a {r.name}" for r in game.receptacles] if first else []
            return f"You are in the middle of a room. Looking quickly around you, you see {listing(seen)}."
        # A quirk of the grammar: it lists only what was taken from one of these receptacles and put into another.
        loose = [
            f"a {game.objects[o].name}"
            for o, r in sorted(state.removed)
            if game.receptacles[r].location == state.location and state.location in state.locations[o]
        ]
        return f"You are facing the {listing([r.name for r in here])}. Next to it, you see {listing(loose)}."

    def _view(self, receptacle: Receptacle) -> str:
        things = [f"a {self.game.objects[o].name}" for o in self.state.contents[receptacle.index]]
        if not receptacle.openable:
            return f"On the {receptacle.name}, you see {listing(things)}."
        if self._reachable(receptacle):
            return f"The {receptacle.name} is open. In it, you see {listing(things)}."
        return f"The {receptacle.name} is closed."

    def _describe(self, thing: Object) -> str:
        name, state, o = thing.name, self.state, thing.index
        if thing.is_container:
            things = [f"a {self.game.objects[i].name}" for i in thing.inside]
            return f"This is a normal {name}. In it, you see {listing(things)}."
        hot, cool, clean = state.hot >> o & 1, state.cool >> o & 1, state.clean >> o & 1
        sliced = state.sliced >> o & 1
        words = [word for word, holds in (("hot", hot), ("cool", cool and not hot), ("clean", clean)) if holds]
        if words == ["cool"] and not sliced:
            words = ["cold"]
        if words:
            return f"This is a {' and '.join(words)} {'sliced ' if sliced else ''}{name}."
        if thing.toggleable and state.toggled >> o & 1:
            return f"This {name} is on."
        if thing.sliceable and sliced:
            return f"This is a sliced {name}."
        return f"There's nothing special about {name}."

    # Commands. Each returns the feedback, or None if the command is not admissible.

    def _do_look(self, rest: str) -> str | None:
        return None if rest else self._look()

    def _do_help(self, rest: str) -> str | None:
        return None if rest else self.game.help_text

    def _do_inventory(self, rest: str) -> str | None:
        if rest:
            return None
        if self.state.held is None:
            return "You are not carrying anything."
        return f"You are carrying: a {self.game.objects[self.state.held].name}."

    def _do_go(self, rest: str) -> str | None:
        receptacle = self.game.receptacle_named.get(rest[3:]) if rest.startswith("to ") else None
        if receptacle is None or receptacle.location == self.state.location:
            return None
        self.state.location = receptacle.location
        if self.game.goal.kind is GoalKind.LOOK:
            self.won = goal_met(self.game, self.state)
        return f"You arrive at {receptacle.name}. {self._view(receptacle)}"

    def _do_examine(self, rest: str) -> str | None:
        receptacle = self._here(rest)
        if receptacle is not None:
            return self._view(receptacle)
        held = self._held_as(rest)
        return None if held is None else self._describe(held)

    def _do_open(self, rest: str) -> str | None:
        receptacle = self._here(rest)
        if receptacle is None or self._reachable(receptacle):
            return None
        self.state.opened |= 1 << receptacle.index
        return f"You open the {rest}. {self._view(receptacle)}"

    def _do_close(self, rest: str) -> str | None:
        receptacle = self._here(rest)
        if receptacle is None or not self.state.opened >> receptacle.index & 1 or not receptacle.openable:
            return None
        self.state.opened &= ~(1 << receptacle.index)
        return f"You close the {rest}."

    def _do_take(self, rest: str) -> str | None:
        state = self.state
        name, _, place = rest.partition(" from ")
        thing, receptacle = self.game.object_named.get(name), self._here(place)
        if thing is None or receptacle is None or state.held is not None or not thing.pickupable:
            return None
        o, r = thing.index, receptacle.index
        if r not in state.places[o] or not self._reachable(receptacle):
            return None
        state.contents[r] = tuple(i for i in state.contents[r] if i != o)
        state.places[o] = tuple(i for i in state.places[o] if i != r)
        state.locations[o] = tuple(x for x in state.locations[o] if x != state.location)
        state.removed |= {(o, r)}
        state.held = o
        self.won = goal_met(self.game, state)
        return f"You pick up the {name} from the {place}."

    def _do_move(self, rest: str) -> str | None:
        state = self.state
        name, _, place = rest.partition(" to ")
        thing, receptacle = self._held_as(name), self._here(place)
        if thing is None or receptacle is None:
            return None
        if not self._reachable(receptacle) or not self.game.can_hold(receptacle, thing):
            return None
        o, r = thing.index, receptacle.index
        state.contents[r] = tuple(sorted({*state.contents[r], o}))
        state.places[o] = tuple(sorted({*state.places[o], r}))
        state.locations[o] = tuple(sorted({*state.locations[o], state.location}))
        state.removed -= {(o, r)}
        state.held = None
        self.won = goal_met(self.game, state)
        return f"You move the {name} to the {place}."

    def _do_use(self, rest: str) -> str | None:
        state, lamp = self.state, self.game.object_named.get(rest)
        if lamp is None or not lamp.toggleable:
            return None
        if not any(self.game.receptacles[r].location == state.location for r in state.places[lamp.index]):
            return None
        state.toggled |= 1 << lamp.index
        self.won = goal_met(self.game, state)
        return f"You turn on the {rest}."

    def _do_slice(self, rest: str) -> str | None:
        name, _, tool = rest.partition(" with ")
        knife, thing = self._held_as(tool), self.game.object_named.get(name)
        if knife is None or thing is None or knife.type not in KNIVES or not self._can_slice(thing):
            return None
        self.state.sliced |= 1 << thing.index
        return f"You sliced the {name} with the {tool}."

    def _treat(self, treatment: Treatment, rest: str) -> str | None:
        state = self.state
        name, _, place = rest.partition(" with ")
        thing, receptacle = self._held_as(name), self._here(place)
        if thing is None or receptacle is None or not can_treat(self.game, treatment, thing, receptacle):
            return None
        bit = 1 << thing.index
        if treatment.verb != "clean":  # heating and cooling undo each other
            state.hot, state.cool = state.hot & ~bit, state.cool & ~bit
        setattr(state, treatment.state, getattr(state, treatment.state) | bit)
        self.won = goal_met(self.game, state)
        return f"You {treatment.verb} the {name} using the {place}."


_HANDLERS: dict[str, Callable[[Episode, str], str | None]] = {
    "look": Episode._do_look,
    "help": Episode._do_help,
    "inventory": Episode._do_inventory,
    "go": Episode._do_go,
    "examine": Episode._do_examine,
    "open": Episode._do_open,
    "close": Episode._do_close,
    "take": Episode._do_take,
    "move": Episode._do_move,
    "use": Episode._do_use,
    "slice": Episode._do_slice,
    "clean": lambda episode, rest: episode._treat(TREATMENTS[GoalKind.CLEAN], rest),
    "heat": lambda episode, rest: episode._treat(TREATMENTS[GoalKind.HEAT], rest),
    "cool": lambda episode, rest: episode._treat(TREATMENTS[GoalKind.COOL], rest),
}
