"""Episodes on disk: a folder a step, a row an episode, turns and judgements nested. Nothing is left out.

The folder holds one parquet file of each process that played some of the episodes; readers of parquet take the folder
as one table. A judgement of one episode is in that episode's row. A judgement of all episodes is in the row of the
first.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlanything.errors import RunError
from rlanything.runs.folder import write_atomic
from rlanything.types import Direction, Ending, Group, Image, Judgement, Prompt, Score, Status, Task, Trajectory, Turn

Row = dict[str, Any]
_IDS, _FLOATS, _TEXT, _TEXTS = pa.list_(pa.int32()), pa.list_(pa.float32()), pa.string(), pa.list_(pa.string())
IMAGE = pa.struct({"path": _TEXT, "digest": _TEXT, "start": pa.int32(), "rows": pa.int32(), "columns": pa.int32()})
PROMPT = pa.struct({"ids": _IDS, "images": pa.list_(IMAGE)})
SCORE = pa.struct({"success": pa.bool_(), "reward": pa.float64(), "answer": _TEXT})
EXCHANGE = {"prompt": PROMPT, "response_ids": _IDS, "logprobs": _FLOATS, "text": _TEXT, "parse_error": _TEXT}
FEEDBACK = {"reward": pa.float64(), "advantage": pa.float64()}
PLACE = pa.struct({"episode": pa.int32(), "turn": pa.int32(), "score": pa.float64()})
JUDGEMENT = pa.struct({**EXCHANGE, "scores": pa.list_(PLACE), "shared": pa.bool_(), "counts": pa.bool_(), **FEEDBACK})
TURN = pa.struct(
    {
        **EXCHANGE,
        "action": _TEXT,
        "observation": _TEXT,
        "stop_reason": _TEXT,
        "kind": _TEXT,
        "invalid": pa.bool_(),
        "label": pa.int8(),
        "results": _TEXTS,
        "images": _TEXTS,
        "point": pa.list_(pa.float32()),
        "state": _TEXT,
        "policy_version": pa.int32(),
        "generate_s": pa.float32(),
        "env_s": pa.float32(),
        "signal": pa.float64(),
        **FEEDBACK,
    }
)
TASK = {"task_id": _TEXT, "root_id": _TEXT, "parent_id": _TEXT, "direction": _TEXT, "born_step": pa.int32()}
SCHEMA = pa.schema(
    {
        **TASK,
        "description": _TEXT,
        "kind": _TEXT,
        "index": pa.int32(),
        "origin": pa.int32(),
        "begun": pa.int32(),
        "score": SCORE,
        "outcome": pa.int8(),
        "status": _TEXT,
        "ending": _TEXT,
        "error": _TEXT,
        "seconds": pa.float32(),
        "phases": pa.map_(_TEXT, pa.float32()),
        "retries": pa.int32(),
        "reward": pa.float64(),
        "shaping": pa.map_(_TEXT, pa.float64()),
        "first_observation": _TEXT,
        "first_images": _TEXTS,
        "turns": pa.list_(TURN),
        "judgements": pa.list_(JUDGEMENT),
    }
)


def part_path(folder: Path, part: int) -> Path:
    """The file of the process that played this part of a folder's episodes."""
    return folder / f"part_{part:06d}.parquet"


def parts(path: Path) -> list[Path]:
    """The files of a folder of episodes, in order: none if it does not exist; `path` itself if it is a file."""
    return [path] if path.is_file() else sorted(path.glob("part_*.parquet"))


def write_groups(
    path: Path, groups: Sequence[Group], describe: Callable[[Task], str], kind: Callable[[Task], str]
) -> None:
    """Write all episodes of the groups to a file, with the tasks' descriptions but not their payloads."""
    rows: list[Row] = []
    for group in groups:
        head = vars(group.task) | {"description": describe(group.task), "kind": kind(group.task)}
        judgements: dict[int, list[Row]] = {t.index: [] for t in group.trajectories}
        for judgement in group.judgements:
            episode = group.trajectories[0].index if judgement.shared else next(iter(judgement.scores))[0]
            judgements[episode].append(_judgement_row(judgement))
        rows += [head | _row(t) | {"judgements": judgements[t.index]} for t in group.trajectories]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), sink, compression="zstd")
    write_atomic(path, sink.getvalue().to_pybytes())


def _row(trajectory: Trajectory) -> Row:
    # dataclasses.asdict would copy every token id, which takes longer than writing them.
    turns = [vars(turn) | {"prompt": _prompt_row(turn.prompt)} for turn in trajectory.turns]
    score = vars(trajectory.score) if trajectory.score else None
    return vars(trajectory) | {"turns": turns, "score": score, "outcome": trajectory.outcome}


def _judgement_row(judgement: Judgement) -> Row:
    scores = [{"episode": e, "turn": i, "score": s} for (e, i), s in judgement.scores.items()]
    return vars(judgement) | {"prompt": _prompt_row(judgement.prompt), "scores": scores}


def _prompt_row(prompt: Prompt) -> Row:
    return {"ids": prompt.ids, "images": [vars(image) for image in prompt.images]}


def read_rows(path: Path) -> list[Row]:
    """The rows of a file or folder as plain dicts."""
    return pq.read_table(path).to_pylist()


def success_rates(path: Path) -> dict[str, float]:
    """The success rate of each task, by its id, over the episodes that the infrastructure did not break.

    Raises RunError if the file is none of an evaluation, or damaged.
    """
    try:
        rows = pq.read_table(path, columns=["task_id", "outcome", "status"]).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path}: no file of an evaluation, or damaged ({error}); evaluate again") from error
    outcomes: dict[str, list[bool]] = {}
    for row in rows:
        if not Status(row["status"]).is_failure:
            outcomes.setdefault(row["task_id"], []).append(row["outcome"] > 0)
    return {task: sum(won) / len(won) for task, won in outcomes.items()}


def read_groups(path: Path, tasks: dict[str, Task]) -> list[Group]:
    """The groups of a file or folder. Tasks are looked up in `tasks` by id; others have no payload."""
    groups: dict[str, Group] = {}
    for row in read_rows(path):
        id, direction = row["task_id"], Direction(row["direction"])
        if id not in groups:
            lineage = {name: row[name] for name in ("root_id", "parent_id", "born_step")}
            task = tasks.get(id) or Task(id=id, payload={}, direction=direction, **lineage)
            groups[id] = Group(task=task, trajectories=[])
        groups[id].trajectories.append(_trajectory(row))
        groups[id].judgements += map(_judgement, row["judgements"])
    return list(groups.values())


def _trajectory(row: Row) -> Trajectory:
    plain = ("task_id", "index", "first_observation", "error", "seconds", "retries", "reward")
    return Trajectory(
        origin=row.get("origin"),  # episodes of earlier versions have none
        begun=row.get("begun") or 0,
        first_images=tuple(row["first_images"]),
        phases=dict(row.get("phases") or {}),
        shaping=dict(row.get("shaping") or {}),
        turns=[_turn(t) for t in row["turns"]],
        score=Score(**row["score"]) if row["score"] else None,
        status=Status(row["status"]),
        ending=Ending(row["ending"]),
        **{name: row[name] for name in plain},
    )


def _turn(row: Row) -> Turn:
    tuples = {name: tuple(row[name]) for name in ("images", "results")}
    point = tuple(row["point"]) if row["point"] else None
    return Turn(**{**row, **tuples, "point": point, "prompt": _prompt(row["prompt"])})


def _judgement(row: Row) -> Judgement:
    scores = {(s["episode"], s["turn"]): s["score"] for s in row["scores"]}
    return Judgement(**{**row, "prompt": _prompt(row["prompt"]), "scores": scores})


def _prompt(row: Row) -> Prompt:
    return Prompt(ids=row["ids"], images=tuple(Image(**image) for image in row["images"]))
