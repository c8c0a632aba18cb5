"""Figures go to metrics.jsonl, and to the optional sinks that the configuration names.

A resumed run first drops the lines after its checkpoint, so that every step has exactly one line.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from rlanything.config.schema import Config
from rlanything.errors import RunError
from rlanything.runs.folder import write_atomic

Record = dict[str, Any]
PROJECT = "rlanything"  # the project's name in sinks that have projects


class Sink(Protocol):
    """Something that watches a run."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Take the figures of a step."""
        ...

    def close(self) -> None:
        """Flush and end."""
        ...


class TensorBoardSink:
    """TensorBoard event files in `<run>/tensorboard`."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.writer = _require("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder / "tensorboard"))

    def log(self, step: int, values: dict[str, float]) -> None:
        """One scalar a figure."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and end."""
        self.writer.close()


class WandbSink:
    """Weights & Biases, set up by its own environment variables (WANDB_API_KEY, WANDB_PROJECT, WANDB_MODE, ...)."""

    def __init__(self, config: Config, folder: Path) -> None:
        wandb = _require("wandb", "wandb")
        known = folder / "wandb_id"  # a resumed run goes on in the same place
        if not known.exists():
            write_atomic(known, secrets.token_hex(8))
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=config.experiment.name,
            id=known.read_text(),
            resume="allow",
            dir=str(folder),
            config=config.model_dump(),
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, step: int, values: dict[str, float]) -> None:
        """The figures of a step."""
        self.run.log(values, step=step)

    def close(self) -> None:
        """Finish the run."""
        self.run.finish()


class TrackioSink:
    """trackio: figures in a local database, `trackio show` to look at them."""

    def __init__(self, config: Config, folder: Path) -> None:
        trackio = _require("trackio", "trackio")
        self.run = trackio.init(
            project=PROJECT, name=config.experiment.name, resume="allow", config=config.model_dump()
        )

    def log(self, step: int, values: dict[str, float]) -> None:
        """The figures of a step."""
        self.run.log(values, step=step)

    def close(self) -> None:
        """Finish the run."""
        self.run.finish()


SINKS: dict[str, Callable[[Config, Path], Sink]] = {
    "tensorboard": TensorBoardSink,
    "wandb": WandbSink,
    "trackio": TrackioSink,
}


def _require(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RunError(f"experiment.sinks names {package!r}, which is not installed: pip install {package}") from error


class Metrics:
    """The run's figures, a JSON line a record: {"step": n, "phase": "train" | "eval", name: number or null, ...}."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self.sinks: list[Sink] = []
        for name in config.experiment.sinks:
            self.sinks.append(SINKS[name](config, path.parent))

    def write(self, step: int, phase: str, values: Record) -> None:
        """Append one record; nan becomes null. Sinks see `<phase>/<split, if any>/<name>`."""
        append_jsonl(self.path, [{"step": step, "phase": phase, **values}])
        head = f"{phase}/{values['split']}" if "split" in values else phase
        finite = {k: float(v) for k, v in values.items() if isinstance(v, (int, float)) and math.isfinite(v)}
        numbers = {f"{head}/{k}": v for k, v in finite.items()}
        for sink in self.sinks:
            sink.log(step, numbers)

    def close(self) -> None:
        """Close the sinks."""
        for sink in self.sinks:
            sink.close()


def append_jsonl(path: Path, records: Iterable[Record]) -> None:
    """Append records to a JSON-lines file."""
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(_plain(r), ensure_ascii=False) + "\n" for r in records)


def read_jsonl(path: Path) -> list[Record]:
    """All whole records of a JSON-lines file, without a last line that a crash cut; [] if there is no file."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")  # the cut may be within a character
    return [json.loads(line) for line in lines[:-1]]


def drop_after(path: Path, step: int) -> None:
    """Keep the records up to `step`: what came later is done anew by a resumed run."""
    if path.exists():
        kept = [r for r in read_jsonl(path) if r["step"] <= step]
        write_atomic(path, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in kept))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
