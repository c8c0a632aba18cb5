"""Episodes on disk: one parquet file a step, a row a trajectory, turns and evaluations nested; nothing is left out.

The unit tests of a task stand in the row of its first trajectory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlanything.runs.folder import write_atomic
from rlanything.types import Direction, Evaluation, Group, Status, Task, Trajectory, Turn

_IDS = pa.list_(pa.int32())
_FLOATS = pa.list_(pa.float32())
EVALUATION = pa.struct(
    [("prompt_ids", _IDS), ("response_ids", _IDS), ("logprobs", _FLOATS), ("text", pa.string()), ("score", pa.int8())]
    + [("parse_error", pa.string()), ("reward", pa.float64()), ("advantage", pa.float64())]
)
TURN = pa.struct(
    [
        ("prompt_ids", _IDS),
        ("response_ids", _IDS),
        ("logprobs", _FLOATS),
        ("text", pa.string()),
        ("action", pa.string()),
    ]
    + [
        ("observation", pa.string()),
        ("stop_reason", pa.string()),
        ("parse_error", pa.string()),
        ("invalid", pa.bool_()),
    ]
    + [("label", pa.int8()), ("images", pa.list_(pa.string())), ("policy_version", pa.int32())]
    + [("generate_s", pa.float32()), ("env_s", pa.float32()), ("results", pa.list_(pa.string()))]
    + [("evaluations", pa.list_(EVALUATION)), ("test_scores", pa.list_(pa.int8()))]
    + [("signal", pa.float64()), ("reward", pa.float64()), ("advantage", pa.float64())]
)
SCHEMA = pa.schema(
    [("task_id", pa.string()), ("root_id", pa.string()), ("parent_id", pa.string()), ("direction", pa.string())]
    + [("born_step", pa.int32()), ("description", pa.string()), ("kind", pa.string()), ("index", pa.int32())]
    + [("outcome", pa.int8()), ("status", pa.string()), ("error", pa.string()), ("seconds", pa.float32())]
    + [("retries", pa.int32())]
    + [("first_observation", pa.string()), ("turns", pa.list_(TURN)), ("tests", pa.list_(EVALUATION))]
)


def write_groups(
    path: Path, groups: Sequence[Group], describe: Callable[[Task], str], kind: Callable[[Task], str]
) -> None:
    """Write all episodes of the groups. The task's payload stays with the dataset; its sentence is kept."""
    rows: list[dict[str, Any]] = []
    for group in groups:
        task = group.task
        head: dict[str, Any] = {"root_id": task.root_id, "parent_id": task.parent_id, "direction": str(task.direction)}
        head |= {"born_step": task.born_step, "description": describe(task), "kind": kind(task)}
        tests = [vars(test) for test in group.tests]
        rows += [head | _row(t) | {"tests": [] if i else tests} for i, t in enumerate(group.trajectories)]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), sink, compression="zstd")
    write_atomic(path, sink.getvalue().to_pybytes())


def _row(trajectory: Trajectory) -> dict[str, Any]:
    # Not dataclasses.asdict: it copies every token id, and that takes longer than writing them.
    turns = [vars(turn) | {"evaluations": [vars(e) for e in turn.evaluations]} for turn in trajectory.turns]
    return vars(trajectory) | {"turns": turns, "status": str(trajectory.status)}


def read_rows(path: Path, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a file as plain dicts."""
    rows: list[dict[str, Any]] = pq.read_table(path, columns=columns).to_pylist()
    return rows


def read_groups(path: Path, tasks: dict[str, Task]) -> list[Group]:
    """The groups of a file, of those tasks that are given by id; the others get a task without payload."""
    groups: dict[str, Group] = {}
    for row in read_rows(path):
        turns = [_turn(t) for t in row["turns"]]
        trajectory = Trajectory(
            row["task_id"],
            row["index"],
            row["first_observation"],
            turns,
            row["outcome"],
            Status(row["status"]),
            row["error"],
            row["seconds"],
            row["retries"],
        )
        task = tasks.get(row["task_id"]) or Task(
            row["task_id"], {}, row["root_id"], row["parent_id"], Direction(row["direction"]), row["born_step"]
        )
        group = groups.setdefault(task.id, Group(task, []))
        group.trajectories.append(trajectory)
        group.tests += [Evaluation(**e) for e in row["tests"]]
    return list(groups.values())


def _turn(row: dict[str, Any]) -> Turn:
    evaluations = [Evaluation(**e) for e in row["evaluations"]]
    tuples = {name: tuple(row[name]) for name in ("images", "results")}
    return Turn(**{**row, **tuples, "evaluations": evaluations})
