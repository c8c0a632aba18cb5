"""Real desktops as a backend of OSWorld: the tasks of a folder, or generated ones."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from rlanything.config.plugins import load_object
from rlanything.config.schema import DatasetConfig
from rlanything.domains.base import Env
from rlanything.domains.images import ImageStore
from rlanything.domains.osworld.actions import Action
from rlanything.domains.osworld.desktops.admission import SCORES, Admission
from rlanything.domains.osworld.desktops.backends import check_backend, make_pool, size_of
from rlanything.domains.osworld.desktops.demonstrations import DesktopDemonstrating
from rlanything.domains.osworld.desktops.env import DesktopEnv
from rlanything.domains.osworld.desktops.evaluators import check_evaluators
from rlanything.domains.osworld.desktops.generator import generated
from rlanything.domains.osworld.desktops.oracle import Oracle
from rlanything.domains.osworld.desktops.pool import DesktopPool
from rlanything.domains.osworld.desktops.tasks import INFEASIBLE, Family, Verifier, made_by, read_splits
from rlanything.domains.osworld.options import OsworldOptions
from rlanything.domains.osworld.world import World, payload
from rlanything.errors import ConfigError, TaskError
from rlanything.types import Task


class DesktopWorld(World):
    """The families of `dataset.path`, those of the user's function, or generated ones."""

    def __init__(self, options: OsworldOptions, dataset: DatasetConfig, images: ImageStore) -> None:
        """Raises TaskError if the folder cannot be used, ConfigError if the function cannot."""
        self.options, self.images, self.oracle = options, images, Oracle(options)
        self.train_split = dataset.train_split
        self.demonstrating = DesktopDemonstrating(dataset.prompt, self)
        self.screen = options.screen[0], options.screen[1]
        self.folder = Path(dataset.path) if dataset.path else None
        if options.families and self.folder:
            raise ConfigError(
                f"dataset.options.families: found {options.families!r}, but dataset.path names a folder of families; "
                "leave one of them empty"
            )
        self.function = load_object("dataset.options.families", options.families, ()) if options.families else None
        self.families: dict[str, Family] = {}
        self._splits: dict[str, list[str]] = {}
        if self.folder:
            known, splits = read_splits(self.folder)
            self.families.update(known)
            self._splits.update(splits)

    @property
    def capacity(self) -> int:  # type: ignore[override]
        return size_of(self.options)

    @cached_property
    def pool(self) -> DesktopPool:
        """Desktops start when the first episode does."""
        return make_pool(self.options)

    @cached_property
    def admission(self) -> Admission:
        """Read the file of scripts/osworld_admission.py, in the folder or beside the module of the user's function."""
        name = f"{self.options.backend}.json"
        if self.folder:
            return Admission.read(self.folder / f"admission_{name}")
        if module := self._module():
            return Admission.read(module.parent / f"admission_{self.options.families.partition(':')[2]}_{name}")
        return Admission()

    def tasks(self, split: str) -> list[Task]:
        names = self._names(split)
        admitted = [name for name in names if not self.admission.why(f"{name}/{self.families[name].current}")]
        tasks = [self._task(name) for name in admitted]
        return self._capped(tasks) if split == self.train_split else tasks

    def verifiers(self, family: str) -> Mapping[str, str]:
        return {name: verifier.instruction for name, verifier in self.families[family].verifiers.items()}

    def refusal(self, family: str, verifier: str) -> str:
        if not self.families[family].verifiers[verifier].feasible:
            return "infeasible"
        why = self.admission.why(f"{family}/{verifier}")
        return "pre_solved" if why.startswith(SCORES) else "not_admitted" if why else ""

    def kind(self, task: Task) -> str:
        """The application, or "infeasible"."""
        family = self.families[task.payload["family"]]
        return family.application if self._verifier(task).feasible else INFEASIBLE

    def make_env(self, task: Task) -> Env:
        family = self.families[task.payload["family"]]
        return DesktopEnv(self.pool, self.oracle, family, self._verifier(task), self.images, self.options)

    def script(self, task: Task) -> Iterator[Action] | None:
        return iter(self._verifier(task).solution) if self._verifier(task).solution else None

    def prepare(self, splits: Sequence[str]) -> None:
        for split in splits:
            names = self._names(split)
            self.admission.warn(split, (f"{name}/{key}" for name in names for key in self.families[name].verifiers))
        found = [self.families[task.payload["family"]] for split in splits for task in self.tasks(split)]
        if any(family.needs_oracle for family in found):
            self.oracle.check()
            check_evaluators(found, Path(self.options.oracle))
        check_backend(self.options)

    def data_files(self) -> list[Path]:
        if self.function:
            module = self._module()
            return [module] if module else []
        patterns = ("*.json*", "examples/*/*.json", "new_examples/*/*.json")
        return sorted(path for pattern in patterns for path in self.folder.glob(pattern)) if self.folder else []

    def figures(self) -> dict[str, float]:
        return {"desktops_alive": float(self.pool.num_alive)}

    def close(self) -> None:
        if "pool" in vars(self):
            self.pool.close()
        self.oracle.close()

    def _module(self) -> Path | None:
        """The file of the user's function, if it has one."""
        module = sys.modules[self.options.families.partition(":")[0]] if self.function else None
        return Path(module.__file__) if module and module.__file__ else None

    def _names(self, split: str) -> list[str]:
        if self.folder is None and split not in self._splits:
            if self.function:
                made = made_by(self.function, self.options.families, split)
            else:
                made = generated(split, self._size(split), self.options.infeasible)
            found = {family.id: family for family in made}
            if shared := [name for name, family in found.items() if self.families.get(name, family) != family]:
                raise TaskError(
                    f"dataset.options.families={self.options.families}, split {split}: the family {shared[0]} differs "
                    "from the one with this id in another split; give it an id of its own"
                )
            self.families.update(found)
            self._splits[split] = list(found)
        if split not in self._splits:
            raise TaskError(f"{self.folder}: no split {split}, expected one of {', '.join(self._splits)}")
        return self._splits[split]

    def _size(self, split: str) -> int:
        return self.options.size if split == "train" else self.options.eval_size

    def _task(self, name: str) -> Task:
        family = self.families[name]
        return Task(id=name, payload=payload(name, family.current, family.verifiers[family.current].instruction))

    def _verifier(self, task: Task) -> Verifier:
        return self.families[task.payload["family"]].verifiers[task.payload["verifier"]]

    def _capped(self, tasks: list[Task]) -> list[Task]:
        """Leave out the last tasks that cannot be done where they are more than their share: giving up would pay."""
        feasible = sum(self._verifier(task).feasible for task in tasks)
        share = self.options.infeasible
        left = round(share / (1 - share) * feasible) if share < 1 else len(tasks)
        kept = []
        for task in tasks:
            if not self._verifier(task).feasible:
                if left == 0:
                    continue
                left -= 1
            kept.append(task)
        return kept
