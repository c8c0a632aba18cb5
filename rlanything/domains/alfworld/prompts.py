"""The prompts of the ALFWorld domain. All answers are in \\boxed{...}."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rlanything.domains.alfworld.model import Game
from rlanything.domains.answers import boxed, canonical, choose
from rlanything.domains.base import Observation, ParsedAction, Step
from rlanything.domains.parts import conversation
from rlanything.types import Direction, Message, Trajectory, user

_WELCOME = "-= Welcome to TextWorld, ALFRED! =-\n\n"
# Commands that change something at the agent's place. Going and looking are possible everywhere.
_ACTING = ("take ", "move ", "open ", "close ", "use ", "heat ", "cool ", "clean ", "slice ")

POLICY_SYSTEM = (
    "You are an agent in a household. You see one room as text and act by commands such as: go to shelf 1, "
    "open drawer 2, take mug 1 from desk 1, move mug 1 to shelf 1, heat egg 1 with microwave 1, "
    "cool egg 1 with fridge 1, clean egg 1 with sinkbasin 1, use desklamp 1, examine shelf 1, look, inventory. "
    "You carry at most one thing, and find out what is where only by going there. In each turn think briefly, then "
    "give exactly one command, word for word as the room names things, in \\boxed{}."
)
JUDGE_SYSTEM = (
    "You judge single steps of an agent that works on a household task. A step is good if it brings the task nearer "
    "to its end or looks for what is needed where nobody looked yet; it is bad if it does nothing, repeats what is "
    "known, or undoes progress. Reason briefly about the last step only, then give \\boxed{1} for good or "
    "\\boxed{-1} for bad."
)
REWRITE_SYSTEM = (
    "You change tasks of a household agent so that they become easier or harder in the same room. Write one task in "
    "exactly one of these forms, with kinds of things and places that the room has:\n"
    "put a X in Y. / put a clean X in Y. / put a hot X in Y. / put a cool X in Y. / put two X in Y. / "
    "look at X under the Y.\n"
    "What is in plain sight and needs no preparation is easier. Reason briefly, then give the task in \\boxed{}."
)


@dataclass(frozen=True)
class Prompts:
    """Writes the prompts, and reads the policy's actions."""

    style: str
    """`full` explains the rules; `compact` has the observations alone, for tiny models that demonstrations taught."""
    show_actions: str
    """The option of this name."""
    first_number: int = 1
    """The option of this name."""

    def opening(self, first: Observation) -> list[Message]:
        """The policy's prompt before its first turn."""
        return self._policy(_opening(first.text), first)

    def answer(self, observation: Observation) -> list[Message]:
        """The policy's next message after a turn."""
        return [user(self._with_actions(observation.text, observation))]

    def retold(self, first: Observation, steps: Sequence[Step]) -> list[Message]:
        """The policy's prompt after some steps, rendered anew."""
        past = [_turn(step.action, step.observation.text) for step in steps]
        return self._policy("".join([_opening(first.text), *past]), steps[-1].observation)

    def _policy(self, text: str, now: Observation) -> list[Message]:
        return conversation(POLICY_SYSTEM, self._with_actions(text, now), self.style)

    def _with_actions(self, text: str, now: Observation) -> str:
        if self.show_actions == "all":
            numbered = "\n".join(f"{n}. {a}" for n, a in enumerate(now.actions, self.first_number))
            return f"{text}\nCommands:\n{numbered}"
        here = [a for a in now.actions if a.startswith(_ACTING)] if self.show_actions == "here" else []
        return f"{text}\nHere: {'; '.join(here)}." if here else text

    def parse_action(self, text: str, observation: Observation) -> ParsedAction:
        """The last boxed command, as the room writes it. If all commands are listed, a boxed number names one."""
        found = boxed(text)
        if not found:
            return ParsedAction(None, "no \\boxed{command}")
        numbered = self.show_actions == "all"
        first = self.first_number
        action = choose(found[-1], observation.actions, numbered, first) or canonical(found[-1])
        if numbered and action.isdecimal():
            last = first + len(observation.actions) - 1
            return ParsedAction(None, f"\\boxed{{{action}}}, but the commands are numbered {first} to {last}")
        return ParsedAction(action) if action else ParsedAction(None, "an empty \\boxed{}")

    def judge(self, trajectory: Trajectory, i: int) -> list[Message]:
        """The prompt about turn i. The transcript comes first, so that consecutive turns share a cached prefix."""
        past = [_turn(turn.action, turn.observation) for turn in trajectory.turns[: i + 1]]
        transcript = "".join([_opening(trajectory.first_observation), *past])
        question = f"Is step {i + 1}, the last one, good or bad?" if self.style != "compact" else "Judge the last step."
        return conversation(JUDGE_SYSTEM, f"{transcript}\n{question}", self.style)

    def rewrite(self, game: Game, direction: Direction, accuracy: float, critic: str) -> list[Message]:
        """The prompt for a variant of a game's task."""
        asked = (
            f"Room: {facts_of(game)}\nCritic: {critic or 'none'}\nTask: {game.sentence}\nSolved: {accuracy:.0%}\n"
            f"Make it {direction}."
        )
        return conversation(REWRITE_SYSTEM, asked, self.style)


def _opening(first: str) -> str:
    """Turn the first observation round: the task, then the room, without TextWorld's banner."""
    room, _, task = first.removeprefix(_WELCOME).rpartition("\n\n")
    return f"{task}\n{room}"


def _turn(action: str | None, answer: str) -> str:
    return f"\n> {action or '(no command)'}\n{answer}"


def facts_of(game: Game) -> str:
    """List the kinds of objects that can be taken or switched on, with where they are, then the kinds of places."""
    holders: dict[str, set[str]] = defaultdict(set)
    count: Counter[str] = Counter()
    for thing in game.objects:
        if not (thing.pickupable or thing.toggleable):
            continue
        count[thing.type.lower()] += 1
        holders[thing.type.lower()].update(r.type.lower() for r in game.places(thing))
    things = [f"{k}{_times(n)} in {' '.join(sorted(holders[k])) or 'nothing'}" for k, n in sorted(count.items())]
    places = Counter(r.type.lower() for r in game.receptacles)
    return f"{', '.join(things)}. Places: {', '.join(kind + _times(n) for kind, n in sorted(places.items()))}."


def _times(n: int) -> str:
    return f" x{n}" if n > 1 else ""
