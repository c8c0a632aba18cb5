"""The seam between the domain and a backend of OSWorld: tasks, and an environment for each."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rlanything.domains.base import Env
from rlanything.domains.osworld.actions import Action
from rlanything.domains.parts import Demonstrating
from rlanything.types import Task


class World(ABC):
    """Desktops and their tasks. A family is one desktop with several verifiers, each with an instruction.

    A task is one verifier of a family, with an instruction that may have been rewritten.
    """

    demonstrating: Demonstrating | None = None
    capacity: int | None = None
    """Desktops at once; None if there is no limit."""

    screen: tuple[int, int]
    """Width and height of the screen [pixels]."""

    @abstractmethod
    def tasks(self, split: str) -> list[Task]:
        """One task of each family of a split. Raises TaskError if there is no such split."""

    @abstractmethod
    def verifiers(self, family: str) -> Mapping[str, str]:
        """The instructions of a family's verifiers, by the verifier's name."""

    @abstractmethod
    def variant_refusal(self, family: str, verifier: str) -> str:
        """Why no variant may ask for a verifier; "" if one may.

        `infeasible`: it cannot be done, and variants of that kind would pay a policy that gives up. `pre_solved`: a
        desktop that nobody touched fulfils it. `not_admitted`: this backend cannot set it up or evaluate it.
        """

    def refusal(self, task: Task) -> str:
        """Why this backend cannot play a task; "" if it can, or if nobody tried."""
        return ""

    def admit(self, tasks: Sequence[Task], variants: bool, say: Callable[[str], None]) -> bool:
        """Try what nobody tried of these tasks, and with `variants` all verifiers of their families. `say` gets lines
        about it. Returns True if there was anything to try."""
        return False

    def offered(self, family: str) -> Mapping[str, str]:
        """Return the instructions of the verifiers that a variant may ask for."""
        return {name: text for name, text in self.verifiers(family).items() if not self.variant_refusal(family, name)}

    @abstractmethod
    def kind(self, task: Task) -> str:
        """The task's kind, for tables."""

    @abstractmethod
    def make_env(self, task: Task) -> Env:
        """A desktop for one episode."""

    def script(self, task: Task) -> Iterator[Action] | None:
        """The actions of a scripted solution of the verifier; None if there is none."""
        return None

    def prepare(self, splits: Sequence[str]) -> None:
        """Read the splits, and check that desktops can be had. Raises TaskError."""
        for split in splits:
            self.tasks(split)

    def data_files(self) -> list[Path]:
        """The files that tasks are read from."""
        return []

    def figures(self) -> dict[str, float]:
        """Return figures of the desktops that people may watch."""
        return {}

    def close(self) -> None:  # noqa: B027 (drawn desktops hold nothing)
        """End all desktops."""


def payload(family: str, verifier: str, instruction: str) -> dict[str, str]:
    """The payload of a task."""
    return {"family": family, "verifier": verifier, "instruction": instruction}
