"""Figures go to metrics.jsonl, and to the sinks in `experiment.sinks`.

A resumed run first drops the lines after its checkpoint, so that every step has exactly one line.
"""

from __future__ import annotations

import importlib
import json
import math
import netrc
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from rlanything.errors import RunError
from rlanything.runs.folder import RunFolder, write_atomic

Record = dict[str, Any]
PROJECT = "rlanything"  # in the sinks that group runs by project


class Sink(Protocol):
    """Something that watches a run. The runs of wandb and trackio have these methods already."""

    def log(self, values: dict[str, float], step: int) -> None: ...
    def finish(self) -> None: ...


class TensorBoard:
    """TensorBoard event files in `<run>/tensorboard`."""

    def __init__(self, folder: RunFolder) -> None:
        writer = _require("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self.writer = writer(str(folder.path / "tensorboard"))

    def log(self, values: dict[str, float], step: int) -> None:
        """Write one scalar for each figure."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def finish(self) -> None:
        """Flush and close the file."""
        self.writer.close()


def wandb_run(folder: RunFolder) -> Sink:
    """Weights & Biases, set up by its own environment variables (WANDB_API_KEY, WANDB_PROJECT, WANDB_MODE, ...)."""
    wandb = _require("wandb", "wandb")
    id_file = folder.path / "wandb_id"  # a resumed run goes on under the same id
    if not id_file.exists():
        write_atomic(id_file, secrets.token_hex(8))
    return wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=folder.config.experiment.name,
        id=id_file.read_text(),
        resume="allow",
        dir=str(folder.path),
        config=folder.config.model_dump(),
        settings=wandb.Settings(console="off", silent=True),
    )


def trackio_run(folder: RunFolder) -> Sink:
    """trackio: figures in a local database, which `trackio show` displays."""
    config = folder.config
    return _require("trackio", "trackio").init(
        project=PROJECT, name=config.experiment.name, resume="allow", config=config.model_dump()
    )


SINKS: dict[str, Callable[[RunFolder], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": wandb_run,
    "trackio": trackio_run,
}


def check_sinks(names: Sequence[str]) -> None:
    """Raise RunError if a sink's package is not installed, or if wandb would ask for a key. Starts nothing."""
    for name in names:
        package = _require("torch.utils.tensorboard" if name == "tensorboard" else name, name)
        if name == "wandb" and not _has_key(package.Settings().base_url):
            raise RunError(
                "experiment.sinks names 'wandb', which finds no key: set WANDB_API_KEY, run wandb login, or set "
                "WANDB_MODE=offline"
            )


def _has_key(url: str) -> bool:
    """Say whether W&B needs no key, or finds one in its environment variables or where `wandb login` writes it.

    `url` is its server, unless WANDB_BASE_URL names another one.
    """
    needs_none = os.environ.get("WANDB_MODE", "online") != "online"
    if needs_none or os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    try:
        hosts = netrc.netrc(os.environ.get("NETRC")).hosts
    except (OSError, netrc.NetrcParseError):
        return False
    return bool({urlsplit(os.environ.get("WANDB_BASE_URL", url)).hostname, "api.wandb.ai"} & hosts.keys())


def _require(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RunError(f"experiment.sinks names {package!r}, which is not installed: pip install {package}") from error


class Metrics:
    """The run's figures, a JSON line a record: {"step": n, "phase": "train" | "eval", name: number or null, ...}."""

    def __init__(self, folder: RunFolder) -> None:
        self.path = folder.metrics
        self.sinks = [SINKS[name](folder) for name in folder.config.experiment.sinks]

    def write(self, step: int, phase: str, values: Record) -> None:
        """Append one record; nan becomes null. Sinks get the numbers as `<phase>/<split, if any>/<name>`."""
        append_jsonl(self.path, [{"step": step, "phase": phase, **values}])
        head = f"{phase}/{values['split']}" if "split" in values else phase
        numbers = {k: float(v) for k, v in values.items() if isinstance(v, (int, float)) and math.isfinite(v)}
        for sink in self.sinks:
            sink.log({f"{head}/{k}": v for k, v in numbers.items()}, step=step)

    def close(self) -> None:
        """Close the sinks."""
        for sink in self.sinks:
            sink.finish()


def append_jsonl(path: Path, records: Iterable[Record]) -> None:
    """Append records to a JSON-lines file; nan and infinity become null."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(_lines(records))


def read_jsonl(path: Path) -> list[Record]:
    """All whole records of a JSON-lines file, without a last line that a crash cut; [] if there is no file."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")  # the cut may be within a character
    return [json.loads(line) for line in lines[:-1]]


def drop_after(path: Path, step: int) -> None:
    """Keep the records up to `step`, because a resumed run makes the later ones anew."""
    if path.exists():
        write_atomic(path, _lines(r for r in read_jsonl(path) if r["step"] <= step))


def _lines(records: Iterable[Record]) -> str:
    plain = (json.loads(json.dumps(r), parse_constant=lambda constant: None) for r in records)  # nan, infinity: null
    return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in plain)
