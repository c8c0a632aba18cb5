"""Demonstrations on real desktops: the scripted solutions of generated families, played on desktops of their own."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from rlanything.domains.base import Observation, Step
from rlanything.domains.osworld import prompts
from rlanything.domains.osworld.actions import LAST, Action, call_text, in_words
from rlanything.domains.osworld.desktops.client import DesktopFault
from rlanything.domains.osworld.desktops.tasks import Family, Verifier
from rlanything.domains.osworld.rewriting import choice
from rlanything.domains.osworld.world import payload
from rlanything.domains.parts import Conversation, Demonstrating, vote
from rlanything.errors import TaskError
from rlanything.types import Message, Prompt, Task, Trajectory, Turn, assistant

if TYPE_CHECKING:
    from rlanything.domains.osworld.desktops.world import DesktopWorld

logger = logging.getLogger(__name__)
ATTEMPTS = 3  # at an episode whose desktop breaks
ERRORS = 0.3  # chance that a step of an episode to be judged is a wrong one, with which the episode ends


class DesktopDemonstrating(Demonstrating):
    """Episodes of scripted solutions. A demonstration takes as long as its actions do on a desktop."""

    def __init__(self, style: str, world: DesktopWorld) -> None:
        self.style, self.world = style, world
        self.tools = prompts.tools(style)
        # The caller may be a coroutine, in whose event loop no other can run. Desktops end with the thread that started
        # them (PDEATHSIG), so it lives on.
        self._thread = ThreadPoolExecutor(1, "demonstrations")

    def conversations(self, role: str, split: str, seed: int) -> Iterator[Conversation]:
        names = dict.fromkeys(task.payload["family"] for task in self.world.tasks(split))
        families = [family for name in names if self._scripted(family := self.world.families[name])]
        if not families:
            raise TaskError(
                f"split {split}: no task has a scripted solution, so nothing can be demonstrated; leave dataset.path "
                "empty for generated tasks, or give data= a file of conversations"
            )
        if role == "rewriter":
            families = [family for family in families if len(set(self._ways(family).values())) > 1]
            if not families:
                raise TaskError(f"split {split}: no family has scripted solutions of different lengths to choose from")
        return self._endless(role, families, random.Random(f"{role}/{seed}"))

    def _endless(self, role: str, families: Sequence[Family], rng: random.Random) -> Iterator[Conversation]:
        demonstrate = {"policy": self._act, "reward": self._judge, "rewriter": self._rewrite}[role]
        while True:
            yield from demonstrate(rng.choice(families), rng)

    def _act(self, family: Family, rng: random.Random) -> Iterator[Conversation]:
        """Yield each step of an episode, after the prompt that a policy with the last screens reads."""
        verifier = rng.choice(self._scripted(family))
        first, steps = self._play(family, verifier, verifier.solution)
        for i, step in enumerate(steps):
            limit = self.world.options.max_screens
            asked = prompts.retold(verifier.instruction, first, steps[:i], limit, self.style)
            yield replace(_answered(asked, step.response), tools=self.tools)

    def _judge(self, family: Family, rng: random.Random) -> Iterator[Conversation]:
        """Yield judgements of an episode's steps. The episode follows the script until a wrong step ends it."""
        others = self._scripted(family)
        verifier = rng.choice(others)
        right = next((i for i in range(len(verifier.solution)) if rng.random() < ERRORS), len(verifier.solution))
        actions = list(verifier.solution[:right])
        if right < len(verifier.solution):
            actions.append(_mistake(rng, verifier.solution, verifier.solution[right], others))
        first, steps = self._play(family, verifier, actions)
        trajectory = Trajectory(task_id=family.id, index=0, first_images=first.images)
        trajectory.turns = [_turn(step) for step in steps]
        for i, step in enumerate(steps):
            asked = prompts.judge(verifier.instruction, trajectory, i, self.style)
            score = step.observation.label or (1 if i < right else -1)  # of what follows no script, nothing is known
            yield _answered(asked, vote(score), family.id)

    def _rewrite(self, family: Family, rng: random.Random) -> Iterator[Conversation]:
        """Yield the choice of a harder or an easier verifier, or nothing if there is none."""
        if chosen := choice(self.world.offered(family.id), self._ways(family), rng, self.style):
            yield _answered(*chosen)

    def _scripted(self, family: Family) -> list[Verifier]:
        """The verifiers with a scripted solution that this backend does not refuse."""
        task_of, refusal = self.world.task_of, self.world.refusal
        return [v for name, v in family.verifiers.items() if v.solution and not refusal(task_of(family.id, name))]

    def _ways(self, family: Family) -> dict[str, int]:
        """The lengths of the scripted solutions of what a variant may ask for."""
        offered = {name: family.verifiers[name] for name in self.world.offered(family.id)}
        return {name: len(verifier.solution) for name, verifier in offered.items() if verifier.solution}

    def _play(self, family: Family, verifier: Verifier, actions: Sequence[Action]) -> tuple[Observation, list[Step]]:
        """The first observation, and the steps that these actions are."""

        async def play() -> tuple[Observation, list[Step]]:
            name = next(name for name, other in family.verifiers.items() if other is verifier)
            env = self.world.make_env(Task(id=family.id, payload=payload(family.id, name, verifier.instruction)))
            steps: list[Step] = []
            try:
                first = await env.reset()
                for action in actions:
                    seen = await env.step(action.to_json())
                    if (seen.done or seen.label == -1) and action.kind != "terminate":
                        raise DesktopFault(f"{family.id}: the desktop ended before its script did: {seen.text}")
                    if seen.label == -1 and tuple(actions) == verifier.solution:
                        raise DesktopFault(f"{family.id}: the scripted solution of {name} did not solve it")
                    steps.append(Step(response=_response(action), action=action.to_json(), observation=seen))
                return first, steps
            finally:
                await env.close()

        for attempt in range(ATTEMPTS):
            try:
                return self._thread.submit(asyncio.run, play()).result()
            except DesktopFault as fault:
                if attempt == ATTEMPTS - 1:
                    raise
                logger.warning("a demonstration is played anew: %s", fault)
        raise AssertionError


def _response(action: Action) -> str:
    return f"Action: {in_words(action)}\n{call_text(action)}"


def _mistake(rng: random.Random, solution: Sequence[Action], right: Action, others: Sequence[Verifier]) -> Action:
    """A step that is not the right one: an end too early, the beginning of another script, a click anywhere."""
    end = Action(kind="terminate", status="success")
    elsewhere = [v.solution[0] for v in others if v.solution[0] not in solution]  # or it may only come too early
    click = Action(kind="left_click", coordinate=(rng.randrange(LAST), rng.randrange(LAST)))
    candidates = [click, *([end] if right.kind != "terminate" else []), *elsewhere[:1]]
    return rng.choice(candidates)


def _turn(step: Step) -> Turn:
    nothing = Prompt(ids=[])
    shown = step.observation.images
    return Turn(
        prompt=nothing, response_ids=[], logprobs=[], text=step.response, action=None, observation="", images=shown
    )


def _answered(messages: list[Message], answer: str, key: str = "") -> Conversation:
    """A question with its answer, which alone is learned."""
    return Conversation(messages=[*messages, assistant(answer)], trained=[False] * len(messages) + [True], key=key)
