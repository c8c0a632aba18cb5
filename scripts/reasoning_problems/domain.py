"""The reasoning domain with a judge for tiny models, and demonstrations that leave something to learn: when to call the
tool, and what to write.

The policy is shown calls for some problems of each kind, and the bare right answer for the others, which a tiny model
can give for the easy ones alone. The reward model is shown what was due in place of right and wrong steps.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace

from rlanything.config.schema import Config
from rlanything.config.section import Share
from rlanything.domains.parts import Conversation, Demonstrating
from rlanything.domains.reasoning.calls import call_text
from rlanything.domains.reasoning.demonstrations import ReasoningDemonstrating, answer_text
from rlanything.domains.reasoning.domain import ReasoningDomain, ReasoningOptions
from rlanything.errors import TaskError
from rlanything.types import Direction, Group, Prompt, Score, Task, Trajectory, Turn, assistant

from .generator import EASY, FAMILIES, FIVE, FOUR, ONE, SEVEN, SIX, THREE, TWO, draw, make_row, shown
from .judging import DueStepJudging

KINDS = (EASY, ONE, TWO, THREE, FOUR, FIVE, SIX, SEVEN)  # from easy to hard
BRANCHES = {family.cells[1]: family.otherwise for family in FAMILIES if family.otherwise}
OTHER_BRANCH = BRANCHES | {odd: even for even, odd in BRANCHES.items()}
EASY_CALLS = 0.15  # share of demonstrations of easy problems that call the tool
NUM_EPISODE = 8  # of a task that is to be rewritten
CRITIC = 0.8  # chance that the rewriter is told how episodes went
VARIANT = 0.3  # chance that the problem to be rewritten is a variant of another one, which the rewriter is shown too
WRONG = 0.4  # chance that a step to be judged is wrong
BELIEVED = 0.4  # chance that what a wrong call shows is given as the answer
WRONG_BRANCH = 0.5  # chance that it then takes the wrong branch, if there are two
_OWN = re.compile(r"(?:n=[0-9n*+/]+\n)?print\([0-9n+*/%-]+\)")  # what may be executed here, outside of the sandbox
_NUMBER = re.compile(r"\d+")


class GeneratedOptions(ReasoningOptions):
    """Keys of the demonstrations."""

    call_share: Share = 0.6
    """Share of the policy's demonstrations that call the tool, of problems that are not easy. The others give the bare
    answer."""
    easy_share: Share = 1 / 3
    """Share of easy problems, for the head, among the policy's demonstrations."""


class GeneratedReasoning(ReasoningDomain):
    """Reasoning on problems of scripts/generate_reasoning.py."""

    Options = GeneratedOptions
    options: GeneratedOptions

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.demonstrating = GeneratedDemonstrating(self)
        self.judging = DueStepJudging(config.dataset.prompt)


class GeneratedDemonstrating(Demonstrating):
    """Demonstrations that are made of the rows' cells."""

    def __init__(self, domain: GeneratedReasoning) -> None:
        self.domain, self.shown = domain, ReasoningDemonstrating(domain)

    def conversations(self, role: str, split: str, seed: int) -> Iterator[Conversation]:
        return self._endless(role, self.domain.tasks(split), random.Random(f"{role}/{seed}"))

    def _endless(self, role: str, tasks: list[Task], rng: random.Random) -> Iterator[Conversation]:
        found = {task.payload["kind"] for task in tasks}
        kinds = [kind for kind in KINDS if kind in found or FIVE in found]  # runs may train on longer chains
        easy = [task for task in tasks if task.payload["kind"] == EASY]
        others = [task for task in tasks if task.payload["kind"] != EASY]
        share = self.domain.options.easy_share if role == "policy" and easy and others else len(easy) / len(tasks)
        while True:
            task = rng.choice(easy if rng.random() < share else others)
            if role == "reward":
                yield from self._judged(task, rng)
            elif role == "rewriter":  # few of the split's problems have many calls, and their variants are wanted most
                made = make_row(rng, {rng.choice(kinds): 1.0})
                yield self._rewritten(replace(task, payload=made), kinds, rng)
            else:
                yield self.shown.solution(task, with_calls=self._calls(task, rng))

    def _calls(self, task: Task, rng: random.Random) -> bool:
        return rng.random() < (EASY_CALLS if task.payload["kind"] == EASY else self.domain.options.call_share)

    def _wrong(self, cell: str, rng: random.Random) -> str:
        if cell in OTHER_BRANCH and rng.random() < WRONG_BRANCH:
            return OTHER_BRANCH[cell]
        return _mistaken(cell, rng)

    def _judged(self, task: Task, rng: random.Random) -> Iterator[Conversation]:
        """Yield judgements of the steps of an episode, of which some are wrong."""
        trajectory = Trajectory(task_id=task.id, index=0, first_observation=task.payload["question"])
        known, cells, answer = task.payload["outputs"], list[str](), task.payload["answer"]
        if bad := [cell for cell in task.payload["cells"] if not _OWN.fullmatch(cell)]:
            raise TaskError(f"problem {task.id}: {bad[0]!r:.80} is no cell of scripts/generate_reasoning.py")
        calls = self._calls(task, rng)
        for cell, output in zip(task.payload["cells"], known, strict=True) if calls else ():
            while rng.random() < WRONG:
                wrong = self._wrong(cell, rng)
                heard = shown([*cells, wrong])[-1]
                if heard not in (output, answer):
                    yield self._step(task, trajectory, call_text(wrong), heard, -1, cell)
                    if rng.random() < BELIEVED:
                        yield self._step(task, trajectory, answer_text(heard), "", -1, cell)
                        return
            cells.append(cell)
            yield self._step(task, trajectory, call_text(cell), output, 1, cell)
        good = rng.random() >= WRONG
        given = answer_text(answer if good else _mistaken(answer, rng))
        due = answer if calls else task.payload["cells"][0]
        yield self._step(task, trajectory, given, "", 1 if good else -1, due)

    def _step(self, task: Task, trajectory: Trajectory, text: str, heard: str, score: int, reason: str) -> Conversation:
        nothing = Prompt(ids=[])
        turn = Turn(
            prompt=nothing, response_ids=[], logprobs=[], text=text, action=None, observation=heard, label=score,
            reason=reason,
        )  # fmt: skip
        trajectory.turns.append(turn)
        asked = self.domain.judging.messages(task, trajectory, len(trajectory.turns) - 1)
        messages = [*asked, assistant(self.domain.judging.answer(task, turn))]
        trained = [False] * len(asked) + [True]
        return Conversation(messages=messages, trained=trained, key=f"{task.id}/{id(trajectory)}", judged=turn)

    def _rewritten(self, task: Task, kinds: list[str], rng: random.Random) -> Conversation:
        """A problem with a call more or less, or of the same kind if the split has none such."""
        assert self.domain.rewriting is not None
        direction = rng.choice((Direction.HARDER, Direction.EASIER))
        place = kinds.index(task.payload["kind"]) + (1 if direction is Direction.HARDER else -1)
        question = task.payload["question"]
        while question == task.payload["question"]:
            family, numbers = draw(rng, kinds[min(max(place, 0), len(kinds) - 1)])
            question = rng.choice(family.wordings).format(**numbers)
        num_right = rng.randint(NUM_EPISODE - 1, NUM_EPISODE) if direction is Direction.HARDER else rng.randint(0, 1)
        if rng.random() < VARIANT:
            other, others = draw(rng, rng.choice(kinds))
            task = replace(task, payload={**task.payload, "root": rng.choice(other.wordings).format(**others)})
        group = self._played(task, num_right, rng)
        critic = self.domain.rewriting.critic(group) if rng.random() < CRITIC else ""
        asked = self.domain.rewriting.messages(task, direction, num_right / NUM_EPISODE, critic)
        said = json.dumps({"question": question, "program": family.program.format(**numbers)})
        return Conversation(messages=[*asked, assistant(said)], trained=[False] * len(asked) + [True], key=task.id)

    def _played(self, task: Task, num_right: int, rng: random.Random) -> Group:
        """Made-up episodes of a task, of which `num_right` gave the answer."""
        answer = task.payload["answer"]
        mistakes = [_mistaken(answer, rng) for _ in range(rng.randint(1, NUM_EPISODE))]
        group = Group(task=task, trajectories=[])
        for i in range(NUM_EPISODE):
            given = answer if i < num_right else rng.choice(mistakes)
            score = Score(success=i < num_right, answer=given)
            group.trajectories.append(Trajectory(task_id=task.id, index=i, score=score))
        return group


def _mistaken(text: str, rng: random.Random) -> str:
    """A cell or an answer with another number in it, or a cell without numbers with one more."""
    places = list(_NUMBER.finditer(text))
    if not places:
        return text.removesuffix(")") + f"+{rng.randint(1, 9)})"
    place = rng.choice(places)
    number = int(place[0])
    other = number
    while other == number:
        other = rng.choice([rng.randint(1, 99), number + rng.choice((-10, -1, 1, 10)), number // 10, number * 2])
        other = max(1, other)
    return f"{text[: place.start()]}{other}{text[place.end() :]}"
