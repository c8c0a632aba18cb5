"""The folder of one run: its paths, and a lock that keeps a second process from writing the same run."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from pathlib import Path
from typing import IO, Any

from omegaconf import OmegaConf

from rlanything.config.load import to_yaml
from rlanything.config.roles import ROLES, Role
from rlanything.config.schema import Config
from rlanything.errors import RunError

FIXED = (
    "experiment.seed",
    "model",
    "dataset",
    "rollout",
    "algorithm",
    "reward",
    "evaluation",
)  # a resumed run must have the same values here
FREE = (
    "rollout.env_timeout_s",
    "rollout.num_retry",
    "rollout.max_failure_rate",
)  # except these: errors say to raise them
SMALL_FILE = 1 << 20  # [bytes] the fingerprint holds the content of smaller files, and only the size of larger ones


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file by rename, so that a reader or a resumed run never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def fingerprint(model: str) -> str:
    """A digest of a model's folder, quick for large models too; "" for a name that is not a local folder."""
    digest = hashlib.sha256()
    files = sorted(p for p in Path(model).glob("*") if p.is_file()) if model and Path(model).is_dir() else []
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode() + (file.read_bytes() if size < SMALL_FILE else b""))
    return digest.hexdigest() if files else ""


class RunFolder:
    """`<output_dir>/<name>/`: configuration, metrics, ledger, rollouts, evaluations, checkpoints, logs, report."""

    def __init__(self, config: Config) -> None:
        self.path = Path(config.experiment.output_dir) / config.experiment.name
        self.metrics = self.path / "metrics.jsonl"
        self.ledger = self.path / "tasks.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.logs = self.path / "logs"
        self.report = self.path / "report.html"
        self._lock: IO[str] | None = None

    def open(self, config: Config) -> None:
        """Create the folder, take its lock and write the resolved configuration.

        Raises RunError if the folder is in use, or holds a run of other models, tasks or rules, whose episodes and
        checkpoints must not be mixed with this run's.
        """
        if config.experiment.resume == "never" and self._used():
            raise RunError(
                f"{self.path}: holds a run already and experiment.resume=never; choose another experiment.name, "
                "or experiment.resume=auto"
            )
        self.logs.mkdir(parents=True, exist_ok=True)
        self._lock = open(self.path / ".lock", "w")  # noqa: SIM115 (held until the process ends)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunError(
                f"{self.path}: another process is writing this run; wait for it or choose another experiment.name"
            ) from error
        models = {role: fingerprint(config.model.of(role).path) for role in ROLES}
        self._refuse_other_run(config, models)
        write_atomic(self.path / "models.json", json.dumps(models))
        write_atomic(self.path / "config.yaml", to_yaml(config))

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _used(self) -> bool:
        """Whether anything was measured here: a run that failed at its start may be started otherwise."""
        return self.metrics.exists() or any(self.path.glob("evaluations/parts/*"))

    def _refuse_other_run(self, config: Config, models: dict[Role, str]) -> None:
        stored = self.path / "config.yaml"
        if not (stored.exists() and self._used()):
            return
        old: Any = OmegaConf.to_container(OmegaConf.load(stored), resolve=True)
        new = config.model_dump()
        for name in FIXED:
            section, _, only = name.partition(".")
            for key, now in new[section].items():
                if (only and key != only) or f"{section}.{key}" in FREE:
                    continue
                before = old.get(section, {}).get(key)
                if before != now:
                    raise RunError(
                        f"{self.path}: holds a run with {section}.{key}={before}, now {now}; "
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
        """The parquet file of a step's episodes."""
        return self.path / "rollouts" / f"step_{step:06d}.parquet"

    def evaluation(self, step: int, split: str) -> Path:
        """The parquet file of an evaluation's episodes."""
        return self.path / "evaluations" / f"step_{step:06d}_{split}.parquet"
