"""The page of one run, report.html: figures, task lineages, episodes. It loads nothing but the run's own screenshots.

All data is in one JSON block in which `<` cannot occur, and the page's scripts show it as text only. A content
security policy with the hashes of the page's own script and style stops everything else.
"""

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

from rlanything.config.schema import AdaptationConfig, AlgorithmConfig, RewardConfig
from rlanything.runs.excerpts import excerpts
from rlanything.runs.folder import RunFolder, write_atomic
from rlanything.runs.lineage import lineages
from rlanything.runs.metrics import Record, read_jsonl

PAGE = Path(__file__).with_name("report")
SCRIPTS = ("dom.js", "chart.js", "curves.js", "overview.js", "tasks.js", "conversation.js", "episodes.js")
MAX_POINTS = 1000  # of a curve: more cannot be told apart and would only take space
NO_VALUE = "–"

_SUCCESS = ("success (95 % interval)", "success_rate")
_JUDGED = (("RM process accuracy", "rm_process_accuracy"), ("mean turns", "mean_turns"))
_TESTED = (("unit tests right", "test_accuracy"), ("unit tests telling", "test_detect_rate"))
_INVALID = ("invalid actions", "invalid_action_rate")


def write_report(folder: RunFolder) -> None:
    """Write `folder.report` by rename, from all that the run has recorded so far, even if that is nothing."""
    write_atomic(folder.report, render(report_data(folder), folder.path.name))


def before_after(folder: RunFolder) -> tuple[list[str], list[list[str]]]:
    """(header, rows) that compare the first and the last evaluation of every split, in four rows each.

    Rates are percentages, changes of rates percentage points. Without a second evaluation the last two columns hold a
    dash; without any there are no rows.
    """
    evaluations = _by_split(read_jsonl(folder.metrics))
    columns = ["before", "after"]
    spans = {(e[0]["step"], e[-1]["step"]) for e in evaluations.values()}
    if len(spans) == 1:
        first, last = spans.pop()
        columns = [f"step {first}", f"step {last}" if last != first else "after"]
    rows = []
    for split, records in evaluations.items():
        before, after = records[0], records[-1] if len(records) > 1 else {}
        figures = [_SUCCESS, *(_TESTED if "test_accuracy" in before else _JUDGED), _INVALID]
        for i, (title, key) in enumerate(figures):
            values = [_shown(before, key), _shown(after, key), _change(before, after, key)]
            rows.append([split if i == 0 else "", title, *values])
    return ["split", "figure", *columns, "change"], rows


def report_data(folder: RunFolder) -> dict[str, Any]:
    """All that the page shows, as JSON-ready data."""
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
        "judge": _judge(config),
        "config": config_text,
        "seconds": sum(r.get("step_s") or 0.0 for r in train),
        "before_after": {"header": header, "rows": rows},
        "train": _columns(train),
        "evaluations": {split: _columns(found) for split, found in evaluations.items()},
        "band": [band.alpha_low, band.alpha_high],
        "policy_band": config.get("algorithm", {}).get("band", AlgorithmConfig().band),
        "lineages": lineages(folder, band),
        "excerpts": excerpts(folder, _steps(train), {split: _steps(found) for split, found in evaluations.items()}),
    }


def _judge(config: dict[str, Any]) -> str:
    """The judge, if it is no reward model that is trained."""
    reward = RewardConfig(**config.get("reward", {}))
    if not reward.num_evaluation:
        return ""
    if reward.judge == "model":
        return "" if reward.trained else "the reward model as it is: it is not trained (reward.trained=false)"
    if reward.judge == "measured":
        return f"measured by {reward.num_evaluation} continuations of each state: an analysis, no reward model"
    noise = f", {reward.label_noise:.0%} of them flipped" if reward.label_noise else ""
    return f"the domain's own step labels{noise}: an analysis, no reward model"


def render(data: dict[str, Any], title: str) -> str:
    """The page. The data holds no `<` as a character, so that no text in it can end the block that it is in."""
    style = "\n" + (PAGE / "style.css").read_text(encoding="utf-8")
    script = '\n"use strict";\n' + "".join((PAGE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    sources = f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    images = "img-src 'self' file:"  # screenshots, in the run's folder beside the page
    policy = f"default-src 'none'; {sources}; {images}; base-uri 'none'; form-action 'none'"
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


def _steps(records: Sequence[Record]) -> list[int]:
    return [record["step"] for record in records]


def _columns(records: Sequence[Record]) -> dict[str, list[float | None]]:
    """Records as columns, five digits a number; thinned to `MAX_POINTS` rows that keep the first and the last."""
    stride = max(1, math.ceil(len(records) / MAX_POINTS))
    kept = [r for i, r in enumerate(records) if i % stride == 0 or i == len(records) - 1]
    names = dict.fromkeys(k for r in kept for k, v in r.items() if isinstance(v, (int, float)))
    return {name: [_short(r.get(name)) for r in kept] for name in names}


def _short(value: float | None) -> float | None:
    return value if value is None or isinstance(value, int) else float(f"{value:.5g}")


def _shown(record: Record, key: str) -> str:
    value, low, high = (record.get(k) for k in (key, "success_low", "success_high"))
    if value is None:
        return NO_VALUE
    if key == "mean_turns":
        return f"{value:.1f}"
    if key == "success_rate" and low is not None and high is not None:
        return f"{100 * value:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
    return f"{100 * value:.1f} %"


def _change(before: Record, after: Record, key: str) -> str:
    a, b = before.get(key), after.get(key)
    if a is None or b is None:
        return NO_VALUE
    return f"{b - a:+.1f}" if key == "mean_turns" else f"{100 * (b - a):+.1f} points"
