"""True advantages, measured: the policy plays on from every state that episodes reached, again and again.

What a turn is worth is the chance of success after it less the chance before it. The environment must repeat itself:
recorded responses are played anew, and have to lead to the same prompts.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from rlanything.config.schema import RolloutConfig
from rlanything.domains.base import Domain
from rlanything.engines.base import Completion, Engine, SamplingParams
from rlanything.engines.chat_model import ChatModel
from rlanything.errors import RunError
from rlanything.rollout.episode import Player
from rlanything.rollout.judging import Judge
from rlanything.types import Group, Image, Judgement, Place, Prompt, Task, Turn

StateKey = tuple[tuple[int, ...], ...]
"""The token ids of all responses so far."""
Halves = tuple[float, float]
"""A chance of success by the even and by the odd continuations."""


class Replaying:
    """What a player needs of an engine: it answers each session's first requests with recorded turns, then samples."""

    def __init__(self, engine: Engine, task: Task, turns: Sequence[Turn]) -> None:
        self.engine, self.task, self.turns = engine, task, turns
        self.version = engine.version
        self._asked: dict[str, int] = {}

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, n: int = 1, images: Sequence[Image] = ()
    ) -> list[Completion]:
        """See `Engine`. Raises RunError if a recorded turn meets another prompt than it had."""
        i = self._asked.get(sampling.session, 0)
        self._asked[sampling.session] = i + 1
        if i >= len(self.turns):
            return await self.engine.generate(prompt_ids, sampling, n, images)
        turn = self.turns[i]
        if prompt_ids != turn.prompt.ids:
            raise RunError(
                f"task {self.task.id}: turn {i} has another prompt when its episode is played anew, so advantages "
                "cannot be measured; expected an environment that repeats itself"
            )
        return [Completion(token_ids=turn.response_ids, logprobs=turn.logprobs, stop_reason=turn.stop_reason)]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One turn, and the chances of success before and after it."""

    task: str
    turn: Turn
    place: Place
    before: Halves
    after: Halves

    @property
    def advantage(self) -> float:
        """The chance of success after it less the chance before it, by all continuations; -1 to 1."""
        return sum(self.after) / 2 - sum(self.before) / 2

    def half(self, number: int) -> float:
        """The same by the even (0) or the odd (1) continuations."""
        return self.after[number] - self.before[number]


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
        chances = await asyncio.gather(*(self._chance(group.task, t, i) for i, t in enumerate(found.values())))
        of_state = dict(zip(found, chances, strict=True))
        measured = []
        for t in group.valid:
            reached = [of_state[state_key(t.turns[:i])] for i in range(len(t.turns))]
            reached.append((float(t.success), float(t.success)))  # the episode is over
            measured += [
                Measured(task=group.task.id, turn=turn, place=(t.index, i), before=reached[i], after=reached[i + 1])
                for i, turn in enumerate(t.turns)
            ]
        return [m for m in measured if not math.isnan(m.advantage)]

    async def _chance(self, task: Task, turns: Sequence[Turn], number: int) -> Halves:
        async with self._at_once:
            engine = cast(Engine, Replaying(self.policy.engine, task, turns))  # a player asks it for samples alone
            policy = replace(self.policy, engine=engine)
            player = Player(self.domain, policy, self.config, f"{self.seed}/continued/{number}", Judge())
            played = await player.group(task, self.num, self.on_end)
        even, odd = ([t.success for t in played.trajectories[k::2] if not t.status.is_failure] for k in (0, 1))
        return _share(even), _share(odd)


def _share(solved: Sequence[bool]) -> float:
    return sum(solved) / len(solved) if solved else math.nan


def states(group: Group) -> dict[StateKey, list[Turn]]:
    """The states in which turns of the group's valid episodes began: the turns that led there.

    Episodes that have said the same so far are in one state.
    """
    return {state_key(t.turns[:i]): t.turns[:i] for t in group.valid for i in range(len(t.turns))}


def state_key(turns: Sequence[Turn]) -> StateKey:
    """The state that the turns led to."""
    return tuple(tuple(turn.response_ids) for turn in turns)


class MeasuredJudge(Judge):
    """The measured advantage of every turn as its judgement, for analysis; no model reads anything."""

    def __init__(self, continuations: Continuations) -> None:
        self.continuations = continuations

    async def finish(self, group: Group) -> None:
        for m in await self.continuations.measure(group):
            before, after = (sum(halves) / 2 for halves in (m.before, m.after))
            text = f"chance of success {before:.0%} before it, {after:.0%} after it"
            judgement = Judgement(prompt=Prompt(ids=[]), response_ids=[], logprobs=[], text=text)
            judgement.scores[m.place] = m.advantage
            group.judgements.append(judgement)
