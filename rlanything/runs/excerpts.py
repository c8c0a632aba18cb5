"""The few episodes of a run that its report embeds: some steps, some tasks of each, within a fixed number of bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rlanything.runs.folder import RunFolder
from rlanything.types import Status

MAX_BYTES = 3_500_000  # of embedded episodes, as JSON
MAX_STEPS = 8  # training steps, the first and the newest among them
MAX_TASKS = 6  # a step
MAX_EPISODES = 8  # a task
MAX_TEXT = 3000  # characters of a response or an observation
ESCAPE_BYTES = 5  # that the page adds to each character of markup
MAX_JUDGEMENT = 1200  # characters of a judgement

_HEAD = ("task_id", "root_id", "parent_id", "direction", "born_step", "description", "kind")
_EPISODE = ("index", "outcome", "status", "ending", "error", "first_observation")
_TURN = ("text", "action", "observation", "stop_reason", "parse_error", "invalid", "label", "reward", "advantage")
_JUDGEMENT = ("text", "parse_error", "shared", "counts", "advantage")
_PLACE = ("episode", "turn", "score")
# Token ids and logprobs are most of a file, so they are not read.
_COLUMNS = [
    *_HEAD,
    *_EPISODE,
    *(f"turns.list.element.{name}" for name in _TURN),
    "turns.list.element.results.list.element",
    *(f"judgements.list.element.{name}" for name in _JUDGEMENT),
    *(f"judgements.list.element.scores.list.element.{name}" for name in _PLACE),
]


def excerpts(folder: RunFolder, steps: Sequence[int], evaluations: Sequence[tuple[int, str]]) -> dict[str, Any]:
    """{"files": [{label, path, tasks, num_task, num_episode}], "num_file", "max_text"}: what is embedded, of how many.

    `steps` are the training steps recorded, `evaluations` the (step, split) evaluated, both in order. Of every split
    the first and the last evaluation are shown, of training some steps; if bytes run out, every file keeps its best
    tasks, those with mixed outcomes first.
    """
    files = [
        _file(folder, folder.rollouts(step), f"training, step {step}")
        for step in spread(sorted(steps, reverse=True), MAX_STEPS)
    ]
    for split in dict.fromkeys(s for _, s in evaluations):
        of_split = [step for step, s in evaluations if s == split]
        ends = dict.fromkeys([of_split[-1], of_split[0]])
        files += [_file(folder, folder.evaluation(step, split), f"{split}, step {step}") for step in ends]
    files = [f for f in files if f["num_episode"]]
    left = MAX_BYTES
    for rank in range(MAX_TASKS):
        for file in files:
            if rank < len(file["order"]):
                left -= _embed(file, file["order"][rank], left)
    for file in files:
        del file["table"], file["order"]
    num_file = len(steps) + len(evaluations)
    return {"files": [f for f in files if f["tasks"]], "num_file": num_file, "max_text": MAX_TEXT}


def spread(values: Sequence[int], n: int) -> list[int]:
    """n of the values, evenly, the first and the last among them."""
    if len(values) <= n:
        return list(values)
    return [values[round(i * (len(values) - 1) / (n - 1))] for i in range(n)]


def choose(accuracies: dict[str, float], variants: Sequence[str], n: int) -> list[str]:
    """n task ids, best first: two of mixed outcome, a variant, the least and the most solved, then more mixed ones."""
    by_mix = sorted(accuracies, key=lambda t: (abs(accuracies[t] - 0.5), t))
    by_rate = sorted(accuracies, key=lambda t: (accuracies[t], t))
    of_variants = [t for t in by_mix if t in set(variants)]
    return list(dict.fromkeys([*by_mix[:2], *of_variants[:1], *by_rate[:1], *by_rate[-1:], *by_mix]))[:n]


def _file(folder: RunFolder, path: Path, label: str) -> dict[str, Any]:
    """One parquet file, with the ids of the tasks worth showing. It has no episodes if it is missing."""
    head = {"label": label, "path": str(path.relative_to(folder.path)), "tasks": [], "num_episode": 0}
    if not path.exists():
        return head
    table = pq.ParquetFile(path).read(columns=_COLUMNS)
    rates = table.select(["task_id", "outcome"]).group_by("task_id", use_threads=False).aggregate([("outcome", "mean")])
    accuracies = {r["task_id"]: (r["outcome_mean"] + 1) / 2 for r in rates.to_pylist()}
    variants = table.filter(pc.not_equal(table["parent_id"], ""))["task_id"].to_pylist()
    order = choose(accuracies, variants, MAX_TASKS)
    return head | {"num_task": len(accuracies), "num_episode": table.num_rows, "table": table, "order": order}


def _embed(file: dict[str, Any], task_id: str, left: int) -> int:
    """Add a task's episodes, or two of them if all do not fit. Returns the bytes taken."""
    table: pa.Table = file["table"]
    rows = table.filter(pc.equal(table["task_id"], task_id)).to_pylist()
    task = {name: rows[0][name] for name in _HEAD} | {"num_episode": len(rows)}
    tests = [j for row in rows for j in row["judgements"] if j["shared"]]
    solved_by = {row["index"] for row in rows if row["outcome"] > 0}
    task["tests"] = [_vote(test, _passes_correct(test, solved_by)) for test in tests]
    task["num_success"] = sum(r["outcome"] > 0 for r in rows)
    task["num_valid"] = sum(not Status(r["status"]).is_failure for r in rows)
    solved = [r for r in rows if r["outcome"] > 0]
    failed = [r for r in rows if r["outcome"] <= 0]
    for n in (MAX_EPISODES, 2):
        num_solved = max(min(len(solved), n // 2), n - len(failed))
        kept = sorted([*solved[:num_solved], *failed[: n - min(num_solved, len(solved))]], key=lambda r: r["index"])
        entry = task | {"episodes": [_episode(r, tests) for r in kept]}
        text = json.dumps(entry, ensure_ascii=False)
        size = len(text.encode()) + ESCAPE_BYTES * sum(text.count(c) for c in "<>&")
        if size <= left:
            file["tasks"].append(entry)
            return size
    return 0


def _episode(row: dict[str, Any], tests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    episode = {name: row[name] for name in _EPISODE} | {"first_observation": _clip(row["first_observation"], MAX_TEXT)}
    own = [j for j in row["judgements"] if not j["shared"]]
    turns = [_turn(t, (row["index"], i), own, tests) for i, t in enumerate(row["turns"])]
    return episode | {"turns": turns}


def _turn(
    turn: dict[str, Any], place: tuple[int, int], own: Sequence[dict[str, Any]], tests: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    kept = {k: v for k, v in turn.items() if v not in (None, "", False, "stop", [])}
    kept |= {k: _clip(kept[k], MAX_TEXT) for k in ("text", "observation", "action") if k in kept}
    kept |= {k: round(kept[k], 3) for k in ("reward", "advantage") if k in kept}
    kept["judgements"] = [_vote(j, score) for j in own for covered, score in _scores(j) if covered == place]
    kept["test_scores"] = [dict(_scores(test)).get(place) for test in tests]
    return kept


def _scores(judgement: dict[str, Any]) -> list[tuple[tuple[int, int], int | None]]:
    return [((s["episode"], s["turn"]), s["score"]) for s in judgement["scores"]]


def _passes_correct(test: dict[str, Any], solved_by: set[int]) -> int | None:
    """+1 if every correct program passes the test, -1 if not, None if it was tried on none of them."""
    found = [score for (episode, _), score in _scores(test) if episode in solved_by and score is not None]
    return min(found, default=None)


def _vote(judgement: dict[str, Any], score: int | None) -> list[Any]:
    """[score or null, text, why there is no score, advantage]."""
    text, advantage = _clip(judgement["text"], MAX_JUDGEMENT), round(judgement["advantage"], 3)
    return [score, text, judgement["parse_error"], advantage]


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} […{len(text) - limit} more characters]"
