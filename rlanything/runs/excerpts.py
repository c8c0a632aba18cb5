"""The episodes that a report embeds: some steps, some tasks of each, within a fixed number of bytes."""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rlanything.runs.folder import RunFolder
from rlanything.runs.store import Row, parts
from rlanything.types import Place, Status

MAX_BYTES = 3_500_000  # of embedded episodes, as JSON
MAX_STEPS = 8  # training steps, the first and the newest among them
MAX_TASKS = 6  # a step
MAX_EPISODES = 8  # a task
MAX_TEXT = 3000  # characters of a response or an observation
ESCAPE_BYTES = 5  # that the page adds to each character of markup
MAX_JUDGEMENT = 1200  # characters of a judgement

_HEAD = ("task_id", "root_id", "parent_id", "direction", "born_step", "description", "kind")
_EPISODE = ("index", "outcome", "status", "ending", "error", "reward", "first_observation")
_TURN = (
    "text", "action", "kind", "observation", "stop_reason", "parse_error", "invalid", "label", "reward", "advantage"
)  # fmt: skip
_JUDGEMENT = ("text", "parse_error", "shared", "counts", "advantage")
_PLACE = ("episode", "turn", "score")
# Token ids and logprobs are most of a file, so they are not read.
_COLUMNS = [
    *_HEAD,
    *_EPISODE,
    *(f"turns.list.element.{name}" for name in _TURN),
    "turns.list.element.results.list.element",
    "turns.list.element.images.list.element",
    "turns.list.element.point.list.element",
    "first_images.list.element",
    "shaping",
    "origin",
    "begun",
    *(f"judgements.list.element.{name}" for name in _JUDGEMENT),
    *(f"judgements.list.element.scores.list.element.{name}" for name in _PLACE),
]


def excerpts(folder: RunFolder, steps: Sequence[int], evaluations: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """{"files": [{label, path, tasks, num_task, num_episode}], "num_file", "max_text"}: episodes and their files.

    `steps` are the training steps recorded, `evaluations` the steps evaluated of each split, both in order. Some
    training steps are shown, and the first and the last evaluation of every split. If bytes run out, every file keeps
    its best tasks, those with mixed outcomes first.
    """
    labels = {folder.rollouts(s): f"training, step {s}" for s in spread(sorted(steps, reverse=True), MAX_STEPS)}
    for split, evaluated in evaluations.items():
        labels |= {folder.evaluation(s, split): f"{split}, step {s}" for s in (evaluated[-1], evaluated[0])}
    found = []
    for path, label in labels.items():
        if path.exists():
            # pq.read_table would not find the columns of nested lists, of which earlier versions lack some.
            table = pa.concat_tables(pq.ParquetFile(part).read(columns=_COLUMNS) for part in parts(path))
            accuracies, variants = _accuracies(table)
            file: Row = {"label": label, "path": str(path.relative_to(folder.path)), "tasks": []}
            file |= {"num_task": len(accuracies), "num_episode": table.num_rows}
            found.append((file, table, choose(accuracies, variants, MAX_TASKS)))
    left = MAX_BYTES
    for rank in range(MAX_TASKS):
        for file, table, task_ids in found:
            if rank < len(task_ids):
                episodes = table.filter(pc.equal(table["task_id"], task_ids[rank]))
                left -= _embed(file["tasks"], episodes, left, folder.path)
    num_file = len(steps) + sum(map(len, evaluations.values()))
    return {"files": [f for f, _, _ in found if f["tasks"]], "num_file": num_file, "max_text": MAX_TEXT}


def spread(values: Sequence[int], n: int) -> list[int]:
    """n of the values, evenly, the first and the last among them."""
    if len(values) <= n:
        return list(values)
    return [values[round(i * (len(values) - 1) / (n - 1))] for i in range(n)]


def choose(accuracies: dict[str, float], variants: Collection[str], n: int) -> list[str]:
    """n task ids, best first: two of mixed outcome, a variant, the least and the most solved, then more mixed ones."""
    by_mix = sorted(accuracies, key=lambda t: (abs(accuracies[t] - 0.5), t))
    by_rate = sorted(accuracies, key=lambda t: (accuracies[t], t))
    of_variants = [t for t in by_mix if t in variants]
    return list(dict.fromkeys([*by_mix[:2], *of_variants[:1], *by_rate[:1], *by_rate[-1:], *by_mix]))[:n]


def _accuracies(table: pa.Table) -> tuple[dict[str, float], set[str]]:
    """Accuracies by task id, and the ids of variants."""
    outcomes = table.select(["task_id", "parent_id", "outcome"]).group_by(["task_id", "parent_id"], use_threads=False)
    means = outcomes.aggregate([("outcome", "mean")]).to_pylist()
    accuracies = {mean["task_id"]: (mean["outcome_mean"] + 1) / 2 for mean in means}
    return accuracies, {mean["task_id"] for mean in means if mean["parent_id"]}


def _embed(tasks: list[Row], episodes: pa.Table, left: int, folder: Path) -> int:
    """Add a task with its episodes, or with two of them if all do not fit. Returns the bytes taken.

    Images are not embedded. The page, which lies in the run's folder, names them.
    """
    rows = episodes.to_pylist()
    solved = [row for row in rows if row["outcome"] > 0]
    failed = [row for row in rows if row["outcome"] <= 0]
    solved_by = {row["index"] for row in solved}
    tests = [j for row in rows for j in row["judgements"] if j["shared"]]
    task = {name: rows[0][name] for name in _HEAD} | {"num_episode": len(rows), "num_success": len(solved)}
    task["num_valid"] = sum(not Status(row["status"]).is_failure for row in rows)
    task["tests"] = [_vote(test, _passes_correct(test, solved_by)) for test in tests]
    for n in (MAX_EPISODES, 2):
        num_solved = max(min(len(solved), n // 2), n - len(failed))
        kept = sorted([*solved[:num_solved], *failed[: n - min(num_solved, len(solved))]], key=lambda r: r["index"])
        entry = task | {"episodes": [_episode(row, tests, folder) for row in kept]}
        text = json.dumps(entry, ensure_ascii=False)
        size = len(text.encode()) + ESCAPE_BYTES * sum(text.count(c) for c in "<>&")
        if size <= left:
            tasks.append(entry)
            return size
    return 0


def _episode(row: Row, tests: Sequence[Row], folder: Path) -> Row:
    own = [j for j in row["judgements"] if not j["shared"]]
    turns = [_turn(turn, (row["index"], i), own, tests, folder) for i, turn in enumerate(row["turns"])]
    episode = {name: row[name] for name in _EPISODE} | {"turns": turns, "shaping": dict(row.get("shaping") or {})}
    episode |= {"origin": row.get("origin"), "begun": row.get("begun") or 0}  # earlier versions have none
    episode["first_observation"] = _clip(row["first_observation"], MAX_TEXT)
    return episode | {"first_images": _within(row["first_images"], folder)}


def _within(images: Sequence[str], folder: Path) -> list[str]:
    """Paths as the page in the run's folder names them, wherever the run has been moved to since."""
    own = [Path("images", *Path(path).parts[-2:]) for path in images]
    return [
        str(kept) if (folder / kept).is_file() else os.path.relpath(path, folder)
        for kept, path in zip(own, images, strict=True)
    ]


def _turn(turn: Row, place: Place, own: Sequence[Row], tests: Sequence[Row], folder: Path) -> Row:
    # A reward of 0 is kept, though it equals False.
    kept = {k: v for k, v in turn.items() if v is not None and v is not False and v not in ("", "stop", [])}
    if calls := _calls(kept.get("action", "")):
        kept["calls"] = calls
        del kept["action"]
    kept |= {k: _clip(kept[k], MAX_TEXT) for k in ("text", "observation", "action") if k in kept}
    kept |= {k: round(kept[k], 3) for k in ("reward", "advantage") if k in kept}
    if "images" in kept:
        kept["images"] = _within(kept["images"], folder)
    if "point" in kept:
        kept["point"] = [round(share, 4) for share in kept["point"]]
    kept["judgements"] = [_vote(j, _scores(j)[place]) for j in own if place in _scores(j)]
    kept["test_scores"] = [_scores(test).get(place) for test in tests]
    return kept


def _calls(action: str) -> list[dict[str, str]]:
    """The calls of an action that is `{"calls": [...]}`, each an object of texts; none of any other."""
    try:
        found = json.loads(action)["calls"]
        return [{str(name): _clip(str(value), MAX_TEXT) for name, value in call.items()} for call in found]
    except (ValueError, LookupError, TypeError, AttributeError):
        return []


def _scores(judgement: Row) -> dict[Place, float | None]:
    return {(s["episode"], s["turn"]): s["score"] for s in judgement["scores"]}


def _passes_correct(test: Row, solved_by: set[int]) -> float | None:
    """+1 if every correct program passes the test, -1 if not, None if it was tried on none of them."""
    found = [score for (episode, _), score in _scores(test).items() if episode in solved_by and score is not None]
    return min(found, default=None)


def _vote(judgement: Row, score: float | None) -> list[Any]:
    """[score or null, text, why there is no score, advantage]."""
    text, advantage = _clip(judgement["text"], MAX_JUDGEMENT), round(judgement["advantage"], 3)
    return [score, text, judgement["parse_error"], advantage]


def _clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} […{len(text) - limit} more characters]"
