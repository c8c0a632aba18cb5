"""Figures go to metrics.jsonl, and to the sinks in `experiment.sinks`.

A resumed run first drops the lines after its checkpoint, so that every step has exactly one line.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlanything.runs.folder import RunFolder, write_atomic
from rlanything.runs.sinks import Sinks

Record = dict[str, Any]


class Metrics:
    """The run's figures, a JSON line a record: {"step": n, "phase": "train" | "eval", name: number or null, ...}."""

    def __init__(self, folder: RunFolder) -> None:
        self.path = folder.metrics
        self.sinks = Sinks(folder)

    def write(self, step: int, phase: str, values: Record) -> None:
        """Append one record; nan becomes null. Sinks get the numbers as `<phase>/<split, if any>/<name>`."""
        append_jsonl(self.path, [{"step": step, "phase": phase, **values}])
        head = f"{phase}/{values['split']}" if "split" in values else phase
        numbers = {k: float(v) for k, v in values.items() if isinstance(v, (int, float)) and math.isfinite(v)}
        self.sinks.log({f"{head}/{k}": v for k, v in numbers.items()}, step)

    def close(self) -> None:
        """Close the sinks."""
        self.sinks.close()


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
