"""True advantages, measured: the policy plays on from every state that episodes reached, again and again.

What a turn is worth is the chance of success after it less the chance before it. The environment must repeat itself:
recorded responses are played anew, and have to lead to the same prompts.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from rlanything.algorithm.branches import Start, StateKey, state_key
from rlanything.config.schema import RolloutConfig
from rlanything.domains.base import Domain
from rlanything.domains.parts import unwritten
from rlanything.engines.chat_model import ChatModel
from rlanything.errors import RunError
from rlanything.rollout.episode import Player
from rlanything.rollout.judging import Judge, cover_repeats
from rlanything.types import Group, Place, Task, Turn

Halves = tuple[Counter[bool], Counter[bool]]
"""How many of the even and of the odd continuations of a state solved the task, and how many did not."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One turn, and how often continuations from before and from after it solved the task."""

    task: str
    turn: Turn
    place: Place
    before: Halves
    after: Halves

    @property
    def advantage(self) -> float:
        """The chance of success after it less the chance before it, by all continuations; -1 to 1."""
        return chance(*self.after) - chance(*self.before)

    def half(self, number: int) -> float:
        """The same by the even (0) or the odd (1) continuations; nan if there are none."""
        return chance(self.after[number]) - chance(self.before[number])


def chance(*counts: Counter[bool]) -> float:
    """The share of all counted continuations that solved the task; nan without any."""
    counted = sum(counts, Counter[bool]())
    return counted[True] / counted.total() if counted else math.nan


class Continuations:
    """Plays `num` continuations of every state. Equal `seed`s sample alike."""

    def __init__(
        self,
        domain: Domain,
        policy: ChatModel,
        config: RolloutConfig,
        num: int,
        seed: str,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_end` is called after every continuation."""
        self.domain, self.policy, self.config, self.num = domain, policy, config, num
        self.seed, self.on_end = seed, on_end
        self._at_once = asyncio.Semaphore(max(1, config.max_concurrent // num))

    async def measure(self, group: Group) -> list[Measured]:
        """Every turn of the group's valid episodes, but those whose chances the infrastructure hid."""
        found = states(group)
        counts = await asyncio.gather(*(self._continued(group.task, t, i) for i, t in enumerate(found.values())))
        of_state = dict(zip(found, counts, strict=True))
        measured = []
        for t in group.valid:
            reached = [of_state[state_key(t.turns[:i])] for i in range(len(t.turns))]
            reached.append((Counter([t.success]), Counter([t.success])))  # the episode is over
            measured += [
                Measured(task=group.task.id, turn=turn, place=(t.index, i), before=reached[i], after=reached[i + 1])
                for i, turn in enumerate(t.turns)
                if i >= t.begun
            ]
        return [m for m in measured if not math.isnan(m.advantage)]

    async def _continued(self, task: Task, start: Start, number: int) -> Halves:
        async with self._at_once:
            player = Player(self.domain, self.policy, self.config, f"{self.seed}/continued/{number}", Judge())
            played = await player.episodes(task, [start] * self.num, self.on_end)
        for t in played.valid:
            if t.begun < start.num_turn:
                raise RunError(
                    f"task {task.id}: turn {t.begun} of an episode that is played anew is answered in another way, so "
                    "advantages cannot be measured; expected an environment that repeats itself"
                )
        even, odd = (Counter(t.success for t in played.trajectories[k::2] if not t.status.is_failure) for k in (0, 1))
        return even, odd


def states(group: Group) -> dict[StateKey, Start]:
    """The states in which turns of the group's valid episodes began.

    Episodes that have said the same so far are in one state.
    """
    starts = (Start(origin=t, num_turn=i) for t in group.valid for i in range(len(t.turns)))
    return {state_key(start.turns): start for start in starts}


class MeasuredJudge(Judge):
    """The measured advantage of every turn as its judgement, for analysis; no model reads anything."""

    def __init__(self, continuations: Continuations) -> None:
        self.continuations = continuations

    async def finish(self, group: Group) -> None:
        measured = await self.continuations.measure(group)
        group.judgements += [unwritten(m.place, m.advantage) for m in measured]
        cover_repeats(group)
