"""Demonstrates acting on what a policy sees: the explorer searches first where objects of a type usually are.

The planner knows where everything is, and a model that imitated it would learn to guess.
"""

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from rlanything.domains.alfworld.model import Game, Goal, GoalKind
from rlanything.domains.alfworld.rules import TREATMENTS
from rlanything.domains.alfworld.simulator import NOTHING_HAPPENS

Prior = dict[str, Counter[str]]
"""Object type -> how often objects of the type are in or on each receptacle type. Types are in lower case."""

SEARCH_NOISE = 0.7  # std of the log-weights of places: a policy that always searches in one order explores too little
_SEEN = re.compile(r"\ba ([a-z]+ \d+)")
_ARRIVED = re.compile(r"You arrive at ([a-z]+ \d+)\.")


def type_of(name: str) -> str:
    """Return the type in a name: "mug" of "mug 2"."""
    return name.rpartition(" ")[0]


def make_prior(games: Iterable[Game]) -> Prior:
    """Count where objects are at the start of some games."""
    prior: Prior = defaultdict(Counter)
    for game in games:
        for thing in game.objects:
            for receptacle in game.places(thing):
                prior[thing.type.lower()][type_of(receptacle.name)] += 1
    return prior


class Explorer:
    """Demonstrates one episode: `act` says what to do next, `observe` takes in the answer."""

    def __init__(
        self,
        goal: Goal,
        first_observation: str,
        prior: Prior,
        rng: random.Random,
        lapse: float = 0.0,
    ) -> None:
        """`lapse` is the probability with which it overlooks what it sees, or forgets where it has been."""
        self.rng, self.lapse = rng, lapse
        self.goal = goal
        self.object_type = goal.object_type.lower()
        self.receptacle_type = (goal.receptacle_type or "").lower()
        self.lamp_type = (goal.lamp_type or "").lower()
        self.receptacles = _SEEN.findall(first_observation.split("you see", 1)[-1].split("Your task", 1)[0])
        self.visited: set[str] = set()
        self.contents: dict[str, list[str]] = {}
        self.placed: set[str] = set()
        self.held: str | None = None
        self.treated = False
        self.here: str | None = None
        self.to_examine: str | None = None
        self.closed = False
        self.target: str | None = None
        self.weights = {t: self._weights(prior[t]) for t in (self.object_type, self.lamp_type) if t}

    def _weights(self, held: Counter[str]) -> dict[str, float]:
        """Weigh each receptacle type by how often it held the wanted type, per receptacle in the room, with noise."""
        counts = Counter(type_of(r) for r in self.receptacles)
        total = sum(held.values()) or 1
        return {t: (held[t] / total + 0.01) / n * math.exp(self.rng.gauss(0, SEARCH_NOISE)) for t, n in counts.items()}

    def act(self) -> tuple[str, str]:
        """Return (thought, command). The thought names the object first, then what to do with it.

        In this order a small model has already written the object's name when it decides whether it sees one here.
        """
        if self.to_examine is not None:
            return f"{type_of(self.to_examine)}: look", f"examine {self.to_examine}"
        if self.held is None:
            return self._fetch(self.object_type, "take")
        if self.goal.kind is GoalKind.LOOK:
            return self._fetch(self.lamp_type, "use")
        treatment = TREATMENTS.get(self.goal.kind)
        if treatment and not self.treated:
            verb, appliance = treatment.verb, treatment.appliance.lower()
            if self.here and type_of(self.here) == appliance:
                return f"{self.object_type}: {verb}", f"{verb} {self.held} with {self.here}"
            return f"{self.object_type}: {verb}", f"go to {self._choose(appliance)}"
        if self.target is None:
            self.target = self._choose(self.receptacle_type)
        thought = f"{self.object_type}: put"
        if self.here != self.target:
            return thought, f"go to {self.target}"
        return thought, f"open {self.here}" if self.closed else f"move {self.held} to {self.here}"

    def _fetch(self, wanted: str, verb: str) -> tuple[str, str]:
        """Go where an object of the wanted kind was seen and take or use it, or continue the search."""
        candidates = [
            (r != self.here, item, r)
            for r, items in self.contents.items()
            for item in items
            if type_of(item) == wanted and item not in self.placed
        ]
        if candidates:
            _, item, receptacle = min(candidates)
            if receptacle != self.here:
                return f"{wanted}: {verb}", f"go to {receptacle}"
            return f"{wanted}: {verb}", f"take {item} from {receptacle}" if verb == "take" else f"use {item}"
        if self.closed and self.here not in self.contents:
            return f"{wanted}: find", f"open {self.here}"
        if self._lapses():
            return f"{wanted}: find", f"go to {self.rng.choice(sorted(self.visited) or self.receptacles)}"
        unseen = [r for r in self.receptacles if r not in self.visited]
        if not unseen:
            self.visited.clear()
            unseen = self.receptacles
        weights = self.weights[wanted]
        best = max(unseen, key=lambda r: (weights[type_of(r)], -int(r.rpartition(" ")[2])))
        return f"{wanted}: find", f"go to {best}"

    def _lapses(self) -> bool:
        return self.lapse > 0 and self.rng.random() < self.lapse

    def _choose(self, wanted: str) -> str:
        """Return the receptacle of a type with the lowest number.

        If two objects must be put together, a receptacle that holds one of them already comes first.
        """
        of_type = [r for r in self.receptacles if type_of(r) == wanted]
        holding = [r for r in of_type if any(type_of(i) == self.object_type for i in self.contents.get(r, ()))]
        preferred = holding if self.goal.kind is GoalKind.TWO and holding else of_type
        return min(preferred or self.receptacles, key=lambda r: int(r.rpartition(" ")[2]))

    def observe(self, command: str, feedback: str) -> None:
        """Take in the answer to a command, which need not be the one that `act` proposed."""
        verb, _, place = command.partition(" ")
        if feedback == NOTHING_HAPPENS:
            if verb == "go" and self.here:  # the agent stands there already: two receptacles can share a location
                self.to_examine = place.removeprefix("to ")
                self.visited.add(self.to_examine)
            return
        arrived = _ARRIVED.match(feedback)
        if arrived or (verb == "examine" and place in self.receptacles):
            self.here, self.to_examine = arrived[1] if arrived else place, None
            self.visited.add(self.here)
            self.closed = "is closed." in feedback
        elif verb in ("open", "close"):
            self.closed = verb == "close"
        looks = arrived or verb in ("open", "examine")
        if self.here and looks and not self.closed and "you see" in feedback and not self._lapses():
            self.contents[self.here] = _SEEN.findall(feedback.split("you see", 1)[-1])
        self._handle(command)

    def _handle(self, command: str) -> None:
        verb, _, rest = command.partition(" ")
        if verb == "take":
            self.held = rest.partition(" from ")[0]
            if self.held in self.contents.get(self.here or "", []):
                self.contents[self.here or ""].remove(self.held)
        elif verb == "move" and self.held:
            self.contents.setdefault(self.here or "", []).append(self.held)
            if self.here == self.target:
                self.placed.add(self.held)
            self.held = None
        elif verb in [treatment.verb for treatment in TREATMENTS.values()]:
            self.treated = True
