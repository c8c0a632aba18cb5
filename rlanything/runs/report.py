"""The self-contained page of one run, report.html: figures, task lineages, episodes; nothing is loaded from outside.

All data travels as one JSON block in which `<` cannot occur, and the page's scripts put it on screen as text
only; a content security policy with the hashes of the page's own script and style stops everything else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from rlanything.config.schema import AdaptationConfig, AlgorithmConfig
from rlanything.runs.excerpts import excerpts
from rlanything.runs.folder import RunFolder, write_atomic
from rlanything.runs.lineage import lineages
from rlanything.runs.metrics import Record, read_jsonl

PAGE = Path(__file__).with_name("report")
SCRIPTS = ("dom.js", "chart.js", "curves.js", "overview.js", "tasks.js", "episodes.js")
MAX_POINTS = 1000  # of a curve: more are neither seen nor worth the bytes
NO_VALUE = "–"

_HEADER = ["split", "figure", "before", "after", "change"]


def write_report(folder: RunFolder) -> None:
    """Write `folder.report` by rename, from whatever the run has recorded so far (nothing yet is fine too)."""
    write_atomic(folder.report, render(report_data(folder), folder.path.name))


def before_after(folder: RunFolder) -> tuple[list[str], list[list[str]]]:
    """(header, rows) that compare the first and the last evaluation of every split; four rows a split.

    Rates are percentages, changes of rates percentage points; without a second evaluation the last two
    columns hold a dash, without any there are no rows.
    """
    evaluations = _by_split(read_jsonl(folder.metrics))
    spans = {(e[0]["step"], e[-1]["step"]) for e in evaluations.values()}
    header = list(_HEADER)
    if len(spans) == 1:
        first, last = spans.pop()
        header[2:4] = [f"step {first}", f"step {last}" if last != first else "after"]
    rows = []
    for split, records in evaluations.items():
        before, after = records[0], records[-1] if len(records) > 1 else {}
        if "test_accuracy" in before:
            judged = [
                ["unit tests right", *_shares(before, after, "test_accuracy")],
                ["unit tests telling", *_shares(before, after, "test_detect_rate")],
            ]
        else:
            judged = [
                ["RM process accuracy", *_shares(before, after, "rm_process_accuracy")],
                ["mean turns", *_turns(before.get("mean_turns"), after.get("mean_turns"))],
            ]
        figures = [
            ["success (95 % interval)", _success(before), _success(after), _points(before, after, "success_rate")],
            *judged,
            ["invalid actions", *_shares(before, after, "invalid_action_rate")],
        ]
        rows += [[split if i == 0 else "", *figure] for i, figure in enumerate(figures)]
    return header, rows


def report_data(folder: RunFolder) -> dict[str, Any]:
    """Everything that the page shows, as JSON-ready data."""
    records = read_jsonl(folder.metrics)
    train = [r for r in records if r["phase"] == "train"]
    evaluations = _by_split(records)
    config_path = folder.path / "config.yaml"
    config_text = config_path.read_text(encoding="utf-8") if config_path.exists() else ""
    config = yaml.safe_load(config_text) or {}
    band = AdaptationConfig(**config.get("adaptation", {}))
    header, rows = before_after(folder)
    return {
        "name": folder.path.name,
        "written": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "step": train[-1]["step"] if train else 0,
        "total_step": config.get("experiment", {}).get("total_step"),
        "seed": config.get("experiment", {}).get("seed"),
        "models": {role: m.get("path") for role, m in config.get("model", {}).items()},
        "config": config_text,
        "seconds": sum(r.get("step_s") or 0.0 for r in train),
        "before_after": {"header": header, "rows": rows},
        "train": _columns(train),
        "evaluations": {split: _columns(found) for split, found in evaluations.items()},
        "band": [band.alpha_low, band.alpha_high],
        "policy_band": config.get("algorithm", {}).get("band", AlgorithmConfig().band),
        "lineages": lineages(folder, band.alpha_low, band.alpha_high),
        "excerpts": excerpts(
            folder, [r["step"] for r in train], [(r["step"], s) for s, e in evaluations.items() for r in e]
        ),
    }


def render(data: dict[str, Any], title: str) -> str:
    """The page. No `<` of the data survives as a character, so that no text in it can end the block it stands in."""
    style = "\n" + (PAGE / "style.css").read_text(encoding="utf-8")
    script = '\n"use strict";\n' + "".join((PAGE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    sources = f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    policy = f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
    parts = {"TITLE": html.escape(title), "POLICY": policy, "STYLE": style, "DATA": script_json(data), "SCRIPT": script}
    page = (PAGE / "page.html").read_text(encoding="utf-8")
    for name, part in parts.items():
        page = page.replace(f"<!--{name}-->", part)
    return page


def script_json(data: Any) -> str:
    """JSON that is safe inside a script element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _by_split(records: Sequence[Record]) -> dict[str, list[Record]]:
    splits: dict[str, list[Record]] = {}
    for record in records:
        if record["phase"] == "eval":
            splits.setdefault(record["split"], []).append(record)
    return splits


def _columns(records: Sequence[Record]) -> dict[str, list[float | None]]:
    """Records as columns, five digits a number; thinned to `MAX_POINTS` rows that keep the first and the last."""
    stride = max(1, math.ceil(len(records) / MAX_POINTS))
    kept = [r for i, r in enumerate(records) if i % stride == 0 or i == len(records) - 1]
    names = dict.fromkeys(k for r in kept for k, v in r.items() if isinstance(v, (int, float)))
    return {name: [_short(r.get(name)) for r in kept] for name in names}


def _short(value: float | None) -> float | None:
    return value if value is None or isinstance(value, int) else float(f"{value:.5g}")


def _percent(value: float | None) -> str:
    return NO_VALUE if value is None else f"{100 * value:.1f} %"


def _shares(before: Record, after: Record, name: str) -> list[str]:
    return [_percent(before.get(name)), _percent(after.get(name)), _points(before, after, name)]


def _turns(before: float | None, after: float | None) -> list[str]:
    change = NO_VALUE if before is None or after is None else f"{after - before:+.1f}"
    return [*(NO_VALUE if t is None else f"{t:.1f}" for t in (before, after)), change]


def _success(record: Record) -> str:
    rate, low, high = (record.get(k) for k in ("success_rate", "success_low", "success_high"))
    return (
        _percent(rate)
        if rate is None or low is None or high is None
        else f"{_percent(rate)} ({100 * low:.1f} to {100 * high:.1f})"
    )


def _points(before: Record, after: Record, name: str) -> str:
    a, b = before.get(name), after.get(name)
    return NO_VALUE if a is None or b is None else f"{100 * (b - a):+.1f} points"
