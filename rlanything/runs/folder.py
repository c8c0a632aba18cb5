"""The folder of one run: its paths, and a lock that keeps a second process from writing the same run."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlanything.config.load import to_yaml
from rlanything.config.roles import LEARNERS, ROLES
from rlanything.config.schema import Config
from rlanything.config.section import Role
from rlanything.errors import RunError

FIXED = ("model", "dataset", "rollout", "algorithm", "reward", "evaluation")  # a resumed run must have equal values
FIXED_TRAINING = ("lora_rank", "lora_alpha", "train_vision")  # a checkpoint holds only what trains
FREE = ("rollout.env_timeout_s", "rollout.num_retry", "rollout.max_failure_rate")  # but errors say to raise these
PIECE = 1 << 20  # [bytes] of a larger file the fingerprint holds the first, the middle and the last piece


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file by rename, so that a reader or a resumed run never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_place(folder: Path, key: str) -> None:
    """Raise RunError, which begins with `key`, if no folder can be made there, judging by what exists above it."""
    above = next((path for path in (folder, *folder.absolute().parents) if path.exists()), folder)
    if not above.is_dir():
        raise RunError(f"{key}: {above} is a file, expected a folder, or none yet")
    if not os.access(above, os.W_OK | os.X_OK):
        raise RunError(f"{key}: {above} may not be written; choose another folder")


def make_folder(folder: Path, key: str) -> None:
    """Make a folder and those above it. Raises RunError, which begins with `key`, if that fails."""
    check_place(folder, key)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{key}: {folder} cannot be made ({error}); choose another folder") from error


@contextmanager
def locked(file: Path, refusal: str) -> Iterator[None]:
    """Hold a lock on a file while the block runs. Raises RunError with the refusal if another process holds it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunError(refusal) from error
        yield


def fingerprint(model: str) -> str:
    """A digest of a model's folder, quick for large models too; "" for a name that is not a local folder.

    Trained weights differ everywhere, so pieces of a large file tell it from another of its size.
    """
    digest = hashlib.sha256()
    files = sorted(p for p in Path(model).glob("*") if p.is_file()) if model else []
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with open(file, "rb") as opened:
            for start in (0, size // 2, max(0, size - PIECE)) if size > PIECE else (0,):
                opened.seek(start)
                digest.update(opened.read(PIECE))
    return digest.hexdigest() if files else ""


def _at(values: Any, names: Sequence[str]) -> Any:
    """The value under these keys, one below the other; None if there is none."""
    for name in names:
        values = (values or {}).get(name)
    return values


def _completed(old: Any, new: Any) -> Any:
    """The values of a configuration, with those of `new` under keys that it lacks."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return old
    return {**new, **{key: _completed(value, new.get(key)) for key, value in old.items()}}


class RunFolder:
    """`<output_dir>/<name>/`: configuration, metrics, ledger, rollouts, evaluations, checkpoints, logs, report."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.path = Path(config.experiment.output_dir) / config.experiment.name
        self.metrics = self.path / "metrics.jsonl"
        self.ledger = self.path / "tasks.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.logs = self.path / "logs"
        self.report = self.path / "report.html"

    @contextmanager
    def open(self) -> Iterator[None]:
        """Create the folder, write the resolved configuration, and lock the folder while the block runs.

        Raises RunError if the folder is in use, or holds a run of other models, tasks or rules, whose episodes and
        checkpoints must not be mixed with this run's.
        """
        if self.config.experiment.resume == "never" and self._used():
            raise RunError(
                f"{self.path}: holds a run already and experiment.resume=never; choose another experiment.name, "
                "or experiment.resume=auto"
            )
        place = f"experiment.output_dir={self.config.experiment.output_dir}"
        make_folder(self.logs, place)
        refusal = f"{self.path}: another process is writing this run; wait for it or choose another experiment.name"
        with locked(self.path / ".lock", refusal):
            models = {role: fingerprint(self.config.model.of(role).path) for role in ROLES}
            if self._used() and (self.path / "config.yaml").exists():
                self._refuse_other_run(models)
            self._keep_templates()
            write_atomic(self.path / "models.json", json.dumps(models))
            write_atomic(self.path / "config.yaml", to_yaml(self.config))
            yield

    def _keep_templates(self) -> None:
        """Copy the templates of the prompts (`dataset.prompt=FOLDER`). Raises RunError if the run began with others."""
        kept = self.path / "prompts"
        now = {path.name: path.read_bytes() for path in Path(self.config.dataset.prompt).glob("*.jinja")}
        before = {path.name: path.read_bytes() for path in kept.glob("*.jinja")}
        if self._used() and now != before:
            raise RunError(
                f"{self.path}: holds a run with other templates than {self.config.dataset.prompt} has now (it began "
                f"with those of {kept}); choose another experiment.name, or remove the folder"
            )
        shutil.rmtree(kept, ignore_errors=True)
        for name, text in now.items():
            write_atomic(kept / name, text)

    def _used(self) -> bool:
        """True if anything was measured here. A run that failed at its start may be started with other values."""
        return self.metrics.exists() or any(self.path.glob("evaluations/parts/*"))

    def _refuse_other_run(self, models: dict[Role, str]) -> None:
        old: Any = OmegaConf.to_container(OmegaConf.load(self.path / "config.yaml"), resolve=True)
        new = self.config.model_dump()
        # Keys that did not exist when the run began had their defaults' effect. (A domain's are not known here.)
        old = _completed(old, Config().model_dump())
        old["dataset"]["options"] = _completed(old["dataset"]["options"], new["dataset"]["options"])
        fixed = [(section, key) for section in FIXED for key in new[section] if f"{section}.{key}" not in FREE]
        trained = [("training", role, key) for role in LEARNERS for key in FIXED_TRAINING]
        for names in [("experiment", "seed"), *fixed, *trained]:
            before, now = _at(old, names), _at(new, names)
            if before != now:
                raise RunError(
                    f"{self.path}: holds a run with {'.'.join(names)}={before}, now {now}; "
                    "choose another experiment.name, or remove the folder"
                )
        began_with = json.loads((self.path / "models.json").read_text())
        for role, found in models.items():
            if began_with[role] != found:
                raise RunError(
                    f"{self.path}: holds a run of another {role} model than {new['model'][role]['path']} is now "
                    "(its files changed); choose another experiment.name, or remove the folder"
                )

    def rollouts(self, step: int) -> Path:
        """The folder of a step's episodes, which `runs/store.py` writes and reads."""
        return self.path / "rollouts" / f"step_{step:06d}.parquet"

    def evaluation(self, step: int, split: str) -> Path:
        """The folder of a whole evaluation's episodes."""
        return self.path / "evaluations" / f"step_{step:06d}_{split}.parquet"

    def unfinished(self, step: int, split: str) -> Path:
        """The folder of an evaluation's episodes until all are there."""
        return self.path / "evaluations" / "parts" / f"step_{step:06d}_{split}"
