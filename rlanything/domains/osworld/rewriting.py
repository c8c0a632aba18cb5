"""Variants of tasks on a desktop: another verifier of the same family, or the same one with other words."""

import json
import random
from collections.abc import Callable, Mapping

from rlanything.domains.answers import last_object
from rlanything.domains.osworld import prompts
from rlanything.domains.osworld.actions import spoken
from rlanything.domains.osworld.world import World, payload
from rlanything.domains.parts import RejectedTask, Rewriting, variant_of
from rlanything.types import Direction, Message, Task, Turn

NUM_EPISODE = 8  # of a task, in demonstrations


class FamilyRewriting(Rewriting):
    """The rewriter chooses a verifier and writes its instruction."""

    def __init__(self, style: str, world: World, max_instruction: int) -> None:
        self.style, self.world, self.max_instruction = style, world, max_instruction

    def messages(self, task: Task, direction: Direction, accuracy: float, critic: str) -> list[Message]:
        checks = self.world.offered(task.payload["family"])
        now = task.payload["verifier"], task.payload["instruction"]
        return prompts.rewrite(checks, now, direction, accuracy, critic, self.style)

    def parse(self, text: str, task: Task, direction: Direction, task_id: str) -> Task:
        """The proposed variant. Raises RejectedTask by reason: no_proposal, schema, unknown_verifier, one of the
        backend's (`World.variant_refusal`), too_long or unchanged."""
        found = last_object(text, ())
        if found is None:
            raise RejectedTask("no_proposal", 'no JSON object {"check": "instruction"}')
        texts = [words for words in found.values() if words is None or (isinstance(words, str) and words.strip())]
        if len(found) != 1 or len(texts) != 1:
            raise RejectedTask("schema", f"found {json.dumps(found)[:200]}, expected one check with its instruction")
        [name], family = found, task.payload["family"]
        if name not in (known := self.world.verifiers(family)):
            raise RejectedTask("unknown_verifier", f"{name}, expected one of {', '.join(self.world.offered(family))}")
        if why := self.world.variant_refusal(family, name):
            raise RejectedTask(why, f"{name}, expected one of {', '.join(self.world.offered(family))}")
        words = " ".join((texts[0] or known[name]).split())
        if not words.isprintable():
            raise RejectedTask("schema", "found control characters or halves of characters, expected plain text")
        if texts[0] and len(words) > self.max_instruction:
            raise RejectedTask("too_long", f"{len(words)} characters, more than {self.max_instruction}")
        variant = variant_of(task, payload(family, name, words), direction, task_id)
        if identity(variant) == identity(task):
            raise RejectedTask("unchanged", "the same check with the same words")
        return variant

    def told(self, turn: Turn) -> str:
        """The line with which the agent said what it does."""
        return spoken(turn.text) or super().told(turn)


def choice(
    checks: Mapping[str, str],
    ways: Mapping[str, int],
    rng: random.Random,
    style: str,
    critic: Callable[[str, int], str] = lambda now, solved: "",
) -> tuple[list[Message], str] | None:
    """A demonstration of choosing a verifier: the prompt and the answer, or None if no other one fits.

    `checks` are the instructions of a family's verifiers, `ways` the lengths of their solutions, by name. `critic` says
    how the episodes of a verifier went, of which so many of `NUM_EPISODE` were solved. Harder is the next longer way,
    because a much longer one is not solved at all. Easier is the shortest way of another verifier, even if the task's
    own is shorter: what it asks for may be easier. In the compact style the answer keeps the check's words, because a
    tiny model that copies them makes mistakes.
    """
    direction = rng.choice([Direction.HARDER, Direction.EASIER])
    harder = direction is Direction.HARDER
    fitting = {now: [b for b in ways if (ways[b] > ways[now] if harder else b != now)] for now in ways}
    changeable = [now for now, others in fitting.items() if others]
    if not changeable:
        return None
    now = rng.choice(changeable)
    other = min(fitting[now], key=ways.__getitem__)
    solved = rng.randint(NUM_EPISODE - 1, NUM_EPISODE) if harder else rng.randint(0, 1)
    accuracy, told = solved / NUM_EPISODE, critic(now, solved)
    asked = prompts.rewrite(checks, (now, checks[now]), direction, accuracy, told, style)
    return asked, json.dumps({other: None if style == "compact" else checks[other]}, ensure_ascii=False)


def identity(task: Task) -> str:
    """Two tasks are the same if desktop, verifier and words are, whatever the words' case and white space."""
    held = task.payload
    return f"{held['family']} {held['verifier']} {' '.join(held['instruction'].lower().split())}"
