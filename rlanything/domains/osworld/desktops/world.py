"""Real desktops as a backend of OSWorld: the tasks of a folder, or generated ones."""

import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path

from rlanything.config.plugins import load_object
from rlanything.config.schema import DatasetConfig
from rlanything.domains.images import ImageStore
from rlanything.domains.osworld.actions import Action
from rlanything.domains.osworld.desktops.admission import SCORES, Admission, try_all
from rlanything.domains.osworld.desktops.backends import check_backend, make_pool, size_of
from rlanything.domains.osworld.desktops.demonstrations import DesktopDemonstrating
from rlanything.domains.osworld.desktops.env import DesktopEnv
from rlanything.domains.osworld.desktops.evaluators import check_evaluators
from rlanything.domains.osworld.desktops.generator import generated
from rlanything.domains.osworld.desktops.oracle import Oracle
from rlanything.domains.osworld.desktops.pool import DesktopPool
from rlanything.domains.osworld.desktops.tasks import ADMISSION, INFEASIBLE, Family, Verifier, made_by, read_splits
from rlanything.domains.osworld.options import OsworldOptions
from rlanything.domains.osworld.world import World, payload
from rlanything.errors import ConfigError, TaskError
from rlanything.processes.coroutines import run_coroutine
from rlanything.types import Task

SAID = 10  # verifiers that are tried between two lines about it


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
        """Which verifiers were tried, from the file in the folder or beside the module of the user's function."""
        name = f"{self.options.backend}.json"
        if self.folder:
            return Admission.read(self.folder / f"{ADMISSION}{name}")
        if module := self._module():
            return Admission.read(module.parent / f"{ADMISSION}{self.options.families.partition(':')[2]}_{name}")
        return Admission()

    def tasks(self, split: str) -> list[Task]:
        tasks = [self.task_of(name, self.families[name].current) for name in self._names(split)]
        return self._capped(tasks) if split == self.train_split else tasks

    def verifiers(self, family: str) -> Mapping[str, str]:
        return {name: verifier.instruction for name, verifier in self.families[family].verifiers.items()}

    def variant_refusal(self, family: str, verifier: str) -> str:
        if not self.families[family].verifiers[verifier].feasible:
            return "infeasible"
        why = self.admission.why(self.verdict_name(family, verifier))
        return "pre_solved" if why.startswith(SCORES) else "not_admitted" if why else ""

    def refusal(self, task: Task) -> str:
        name = self.verdict_name(task.payload["family"], task.payload["verifier"])
        if why := self.admission.verdicts.get(name):
            return f"{why} ({self.admission.path}; scripts/osworld_admission.py tries its split anew)"
        return self.admission.why(name)

    def admit(self, tasks: Sequence[Task], variants: bool, say: Callable[[str], None]) -> bool:
        if self.admission.path is None:
            return False
        pairs = [(task.payload["family"], task.payload["verifier"]) for task in tasks]
        if variants:
            pairs += [(family, name) for family, _ in pairs for name in self.families[family].verifiers]
        untried = {pair for pair in pairs if not self.admission.is_known(self.verdict_name(*pair))}
        if untried:
            self.try_verifiers([pair for pair in dict.fromkeys(pairs) if pair in untried], say)
        return bool(untried)

    def try_verifiers(
        self, pairs: Sequence[tuple[str, str]], say: Callable[[str], None], anew: bool = False
    ) -> dict[str, str]:
        """Try verifiers, as (family, verifier); `anew` tries those that have a verdict, too. `say` gets lines about it.

        Returns why each cannot be used, or "", by the name of its verdict. Raises TaskError if no desktop can be had,
        or if a verdict cannot be kept.
        """
        ended, admission = itertools.count(1), self.admission
        with admission.locked(say):
            named = {self.verdict_name(*pair): pair for pair in pairs}
            untried = {name: pair for name, pair in named.items() if anew or name not in admission.verdicts}
            if untried:  # another run may have tried them meanwhile
                say(
                    f"trying {len(untried)} verifiers on desktops that nobody touches; those that cannot be set up, or "
                    f"that score, are left out ({admission.path} keeps the verdicts)"
                )

            def on_end(name: str, why: str) -> None:
                admission.keep(name, why)
                if (number := next(ended)) % SAID == 0 or why or number == len(untried):
                    say(f"{number} of {len(untried)} tried" + (f"; left out: {name}: {why}" if why else ""))

            try:
                envs = {name: partial(self.make_env, self.task_of(*pair)) for name, pair in untried.items()}
                run_coroutine(try_all(envs, self.capacity, on_end))
            finally:
                self._end()  # episodes may be played in other processes
        return {name: admission.why(name) for name in named}

    def verdict_name(self, family: str, verifier: str) -> str:
        """The name that a verdict is kept under. It tells what was tried: a task that was changed is tried anew."""
        known = self.families[family]
        tried = json.dumps([known.config, known.verifiers[verifier].evaluator], sort_keys=True)
        return f"{family}/{verifier} {hashlib.blake2b(tried.encode(), digest_size=4).hexdigest()}"

    def kind(self, task: Task) -> str:
        """The application, or "infeasible"."""
        family = self.families[task.payload["family"]]
        return family.application if self._verifier(task).feasible else INFEASIBLE

    def make_env(self, task: Task) -> DesktopEnv:
        family = self.families[task.payload["family"]]
        return DesktopEnv(self.pool, self.oracle, family, self._verifier(task), self.images, self.options)

    def script(self, task: Task) -> Iterator[Action] | None:
        return iter(self._verifier(task).solution) if self._verifier(task).solution else None

    def prepare(self, splits: Sequence[str]) -> None:
        used = [task for split in splits for task in self.tasks(split) if not self.refusal(task)]
        found = [self.families[task.payload["family"]] for task in used]
        if any(family.needs_oracle for family in found):
            self.oracle.check()
            check_evaluators(found, Path(self.options.oracle))
        check_backend(self.options)

    def data_files(self) -> list[Path]:
        if self.function:
            module = self._module()
            return [module] if module else []
        patterns = ("*.json*", "examples/*/*.json", "new_examples/*/*.json")
        found = [path for pattern in patterns for path in self.folder.glob(pattern)] if self.folder else []
        return sorted(path for path in found if not path.name.lstrip(".").startswith(ADMISSION))

    def figures(self) -> dict[str, float]:
        return {"desktops_alive": float(self.pool.num_alive)}

    def close(self) -> None:
        self._end()

    def _end(self) -> None:
        """End desktops and evaluators. They start again when they are needed."""
        if "pool" in vars(self):
            self.pool.close()
            del self.pool
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

    def task_of(self, family: str, verifier: str) -> Task:
        """A family's task with this verifier, in the verifier's own words."""
        return Task(id=family, payload=payload(family, verifier, self.families[family].verifiers[verifier].instruction))

    def _verifier(self, task: Task) -> Verifier:
        return self.families[task.payload["family"]].verifiers[task.payload["verifier"]]

    def _capped(self, tasks: list[Task]) -> list[Task]:
        """Leave out the last tasks that cannot be done where they are more than their share: giving up would pay."""
        feasible = sum(self._verifier(task).feasible for task in tasks if not self.refusal(task))
        share = self.options.infeasible
        left = round(share / (1 - share) * feasible) if share < 1 else len(tasks)
        kept = []
        for task in tasks:
            if not self._verifier(task).feasible and not self.refusal(task):
                if left == 0:
                    continue
                left -= 1
            kept.append(task)
        return kept
