"""The tasks of the drawn desktops: families by name, and a family's verifiers by name."""

import random
from collections.abc import Mapping
from functools import lru_cache

from rlanything.domains.osworld.canvas.goals import instruction
from rlanything.domains.osworld.canvas.tasks import Family, Verifier, make_family
from rlanything.domains.osworld.options import OsworldOptions
from rlanything.domains.osworld.world import payload
from rlanything.errors import TaskError
from rlanything.types import Task

SPLITS = ("train", "eval_in_distribution", "eval_out_of_distribution")
UNSEEN_FAMILY = "demonstrations_of_unseen_words"  # begins the names of families that only demonstrations use
MAX_FAMILIES = 4096  # kept in memory


class FamilyLibrary:
    """Families of the splits. A task names its family and a verifier of it: `{"family", "verifier", "instruction"}`."""

    def __init__(self, options: OsworldOptions) -> None:
        self.options = options
        self.family = lru_cache(MAX_FAMILIES)(self._made)

    def tasks(self, split: str) -> list[Task]:
        """One task of each family. Raises TaskError if there is no such split."""
        if split not in SPLITS:
            raise TaskError(f"split {split}: there is none, expected one of {', '.join(SPLITS)}")
        size = self.options.size if split == "train" else self.options.eval_size
        return [self._task(f"{split}/{i}") for i in range(size)]

    def _task(self, name: str) -> Task:
        verifiers = self.verifiers(name)
        single = [key for key, verifier in verifiers.items() if len(verifier.goals) == 1]  # the rewriter asks for more
        chosen = random.Random(f"verifier of {name}").choice(single or list(verifiers))
        return Task(id=name, payload=payload(name, chosen, instruction(verifiers[chosen].goals)))

    def verifiers(self, family: str) -> Mapping[str, Verifier]:
        """The verifiers of a family by name, the shortest way first."""
        return {f"verifier{i}": v for i, v in enumerate(self.family(family).verifiers, 1)}

    def feasible(self, family: str) -> Mapping[str, Verifier]:
        """The verifiers that can be fulfilled, which variants may ask for."""
        return {name: verifier for name, verifier in self.verifiers(family).items() if verifier.feasible}

    def verifier(self, task: Task) -> Verifier:
        """The verifier of a task."""
        return self.verifiers(task.payload["family"])[task.payload["verifier"]]

    def _made(self, name: str) -> Family:
        unseen = name.startswith(("eval_out_of_distribution", UNSEEN_FAMILY))
        return make_family(name, self.options.level, self.options.infeasible, unseen)
