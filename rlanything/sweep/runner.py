"""Runs every variant with every seed, several at once, and goes on where an earlier call stopped."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from rlanything.algorithm.advantages import advantage_rule
from rlanything.config.load import load_config
from rlanything.config.sweep import SweepConfig
from rlanything.errors import ConfigError, RunError
from rlanything.runs.folder import make_folder, write_atomic
from rlanything.runs.progress import Progress
from rlanything.sweep.table import write_tables

DONE = "done"  # file in a run's folder with the command line that has ended well
MAX_SAID = 300  # characters of a failed training's last line
_NAME = re.compile(r"\w[\w .+-]*")
# A training of its own process, which keeps to its cores and ends with the sweep (PDEATHSIG).
_TRAIN = """
import os, signal, sys
from rlanything.processes.orphans import die_with_parent
die_with_parent(signal.SIGTERM)
parent, cores, *words = sys.argv[1:]
if os.getppid() != int(parent):
    sys.exit("the sweep has ended")
os.sched_setaffinity(0, map(int, cores.split(",")))
from rlanything.__main__ import main
main(["train", *words])
"""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One variant with one seed."""

    variant: str
    seed: int
    words: list[str]
    """The command line of its training."""
    folder: Path
    """Its run."""

    @property
    def name(self) -> str:
        """Variant and seed, in words."""
        return f"{self.variant}, seed {self.seed}"

    @property
    def log(self) -> Path:
        """The file that its training writes its messages to."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def is_done(self) -> bool:
        """True if this very command line has ended well."""
        done = self.folder / DONE
        return done.is_file() and done.read_text(encoding="utf-8").splitlines() == self.words


def cells(config: SweepConfig) -> list[Cell]:
    """All cells, seed by seed, so that the first tables compare all variants. Raises ConfigError for a bad one."""
    if not config.variants or not config.seeds:
        raise ConfigError("variants, seeds: found none, expected at least one of each")
    if unknown := [name for pair in config.compare for name in pair if name not in config.variants]:
        raise ConfigError(f"compare: found {unknown[0]!r}, expected names of variants: {', '.join(config.variants)}")
    folders: dict[str, str] = {}
    for variant in config.variants:
        if other := folders.get(name := variant.replace(" ", "_")):
            raise ConfigError(f"variants: {other!r} and {variant!r} would share a folder; rename one")
        folders[name] = variant
    found = []
    for seed in config.seeds:
        for variant, own in config.variants.items():
            if not _NAME.fullmatch(variant):
                raise ConfigError(f"variants: found the name {variant!r}, expected letters, digits, spaces, + . and -")
            name = f"{variant.replace(' ', '_')}_{seed}"
            own_suffix = f"_{seed}" if seed else ""
            words = [w.replace("{seed}", str(seed)).replace("{_seed}", own_suffix) for w in (*config.common, *own)]
            words += [f"experiment.seed={seed}", f"experiment.output_dir={config.output}", f"experiment.name={name}"]
            words.insert(0, f"config={config.base}")
            try:
                loaded = load_config(words)
                advantage_rule(loaded.algorithm)
            except ConfigError as error:
                raise ConfigError(f"variants, {variant!r}: {error}") from error
            if not loaded.evaluation.splits:
                raise ConfigError(f"variants, {variant!r}: evaluation.splits is empty, so there is nothing to compare")
            found.append(Cell(variant=variant, seed=seed, words=words, folder=Path(config.output) / name))
    return found


def sweep(config: SweepConfig, progress: Progress) -> None:
    """Run all cells that are not done, and write the tables whenever one has ended.

    A cell that fails is told, also in the tables, and the others go on. Raises ConfigError for a bad configuration
    before anything runs, RunError if all cells failed.
    """
    every = cells(config)
    make_folder(Path(config.output), f"output={config.output}")
    trainings, failures = Trainings(config.at_once), dict[str, str]()
    with progress.phase("sweep", len(every)) as bar, ThreadPoolExecutor(config.at_once) as threads:
        try:
            ended = {threads.submit(trainings.run, cell): cell for cell in every}
            for future in as_completed(ended):
                cell = ended[future]
                if why := future.result():
                    failures[cell.name] = why
                    progress.line(f"{cell.name}: failed ({why}); its log is {cell.log}")
                write_tables(Path(config.output), finished(every), failures, config.compare)
                bar.advance()
        except BaseException:
            trainings.stop()
            raise
    if len(failures) == len(every):
        raise RunError(f"all {len(every)} trainings failed; the first: {next(iter(failures.values()))}")
    progress.line((Path(config.output) / "sweep.md").read_text(encoding="utf-8"))


def finished(every: Sequence[Cell]) -> dict[str, dict[int, Path]]:
    """The folders of the cells that have ended well."""
    found: dict[str, dict[int, Path]] = {cell.variant: {} for cell in every}
    for cell in every:
        if cell.is_done:
            found[cell.variant][cell.seed] = cell.folder
    return found


class Trainings:
    """Trainings in processes of their own, each on a share of this process's cores."""

    def __init__(self, at_once: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self._shares: SimpleQueue[list[int]] = SimpleQueue()
        for i in range(at_once):
            self._shares.put(cores[i::at_once] or cores)
        self._stopped, self._lock, self._running = False, Lock(), set[subprocess.Popen[bytes]]()

    def run(self, cell: Cell) -> str:
        """Train a cell that is not done. Returns why it failed, or nothing."""
        if cell.is_done:
            return ""
        share = self._shares.get()
        try:
            words = [str(os.getpid()), ",".join(map(str, share)), *cell.words]
            with self._lock:
                if self._stopped:
                    return "stopped"
                # In a session of its own Ctrl-C does not reach it, so that it is asked to stop once, by `stop`.
                with cell.log.open("ab") as log:
                    training = subprocess.Popen(
                        [sys.executable, "-c", _TRAIN, *words], stdout=log, stderr=log, start_new_session=True
                    )
                self._running.add(training)
            status = training.wait()
            self._running.discard(training)
        finally:
            self._shares.put(share)
        if status == 0:
            write_atomic(cell.folder / DONE, "\n".join(cell.words))
            return ""
        said = cell.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return said[-1][:MAX_SAID] if said else f"exit status {status}"

    def stop(self) -> None:
        """Ask all trainings to stop. Each saves what it can, and goes on with the next call."""
        with self._lock:
            self._stopped = True
            for training in self._running:
                training.terminate()
