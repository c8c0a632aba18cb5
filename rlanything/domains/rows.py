"""Reads a split's rows from a file, in whatever form data tools write it: JSON, JSON lines, Parquet."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet

from rlanything.errors import TaskError

# to_pylist raises these for nanoseconds, dates beyond Python's, unknown time zones and texts that are not UTF-8.
NO_VALUE = (ValueError, OverflowError, LookupError, pyarrow.ArrowException)
ENDINGS = (".json", ".jsonl", ".parquet")


class BadProblem(ValueError):
    """A row is no problem. The message says why."""


class LongNumber(str):
    """A number of JSON with more than 4,300 digits, of which Python makes no int."""


def split_file(folder: Path, split: str) -> Path:
    """The file of a split: `<split>` with one of ENDINGS. Raises TaskError if there is none, or more than one."""
    found = [path for ending in ENDINGS if (path := folder / f"{split}{ending}").is_file()]
    if len(found) == 1:
        return found[0]
    expected = f"{folder}/{split}{{{','.join(ENDINGS)}}}"
    if found:
        raise TaskError(
            f"{expected}: found {', '.join(path.name for path in found)}, expected one of them; remove the others"
        )
    raise TaskError(f"{expected}: no such file; fetch a data set with data/download.py (data/README.md)")


def read_rows(path: Path, field: str) -> list[tuple[str, Any]]:
    """Read a file's rows, each with the words that say where it stands ("row 3", "line 4").

    JSON may be a list of rows, an object of columns or of rows, or an object that holds one of these. `field` names a
    field that every row has, which tells columns from rows. Raises TaskError.
    """
    if not path.is_file():
        raise TaskError(f"{path}: no such file; fetch a data set with data/download.py (data/README.md)")
    if path.suffix == ".parquet":
        try:
            table = pyarrow.parquet.read_table(path)
        except (OSError, pyarrow.ArrowException) as error:
            raise TaskError(f"{path}: not a Parquet file ({error}); fetch it again") from error
        return [(f"row {i}", row) for i, row in enumerate(_plain_rows(path, table))]
    text = _text(path)
    opens_object = text.lstrip().startswith("{")
    if path.suffix == ".jsonl" and opens_object and (lines := _lines(path, text)) is not None:
        return lines  # a line alone is a row, even if all its values are lists
    try:
        value = _loads(text)
    except RecursionError as error:
        raise TaskError(f"{path}: values are nested too deeply") from error
    except ValueError as error:
        lines = _lines(path, text) if opens_object else None
        if lines is None:
            raise TaskError(f"{path}: neither JSON nor JSON lines ({error}); fetch it again") from error
        return lines
    try:
        rows = _rows_of(value, field)
    except RecursionError as error:
        raise TaskError(f"{path}: values are nested too deeply") from error
    if rows is None:
        raise TaskError(
            f"{path}: found {_described(value)}, expected a list of rows that have the field {field!r} (data/README.md)"
        )
    return [(f"row {i}", row) for i, row in enumerate(rows)]


def read_checked(
    path: Path, field: str, check: Callable[[object], dict[str, Any]], skip_bad: bool
) -> tuple[list[tuple[int, dict[str, Any]]], list[str]]:
    """Read a file of problems. `check` makes a payload of a row, or raises BadProblem; names (`task_id`) are unique.

    Returns (index, payload) of every good row, and the faults of the bad ones. Raises TaskError if the file has no good
    row, or if it has a bad one and `skip_bad` is False.
    """
    problems, bad, names = [], [], set()
    rows = read_rows(path, field)
    for index, (place, row) in enumerate(rows):
        try:
            payload = check(row)
            name = payload.get("task_id") or f"{path.stem}/{index:06d}"  # as the domain then calls it
            if name in names:
                raise BadProblem(f"task_id: {name!r} is the name of an earlier row too")
            names.add(name)
            problems.append((index, payload))
        except BadProblem as problem:
            if not skip_bad:
                raise TaskError(
                    f"{path}, {place}: {problem}; mend it, or set dataset.options.skip_bad=true to leave such rows out"
                ) from problem
            bad.append(f"{place}: {problem}")
    if not problems:
        first = f"; {bad[0]}" if bad else ""
        raise TaskError(f"{path}: holds no usable problem ({len(rows)} rows, {len(bad)} of them bad{first})")
    return problems, bad


def check_characters(payload: Any) -> None:
    """Raises BadProblem if a payload is no JSON, or a text of it holds half a character: no file or pipe takes that."""
    try:
        json.dumps(payload, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        near = error.object[max(0, error.start - 40) : error.start + 1]
        raise BadProblem(f"half a character (a lone surrogate) in a text, after {near!r}") from error
    except (TypeError, RecursionError) as error:  # Parquet holds bytes, dates and times too
        raise BadProblem(f"a value that JSON cannot hold ({error}); write it as a text or a number") from error


def _plain_rows(path: Path, table: pyarrow.Table) -> list[dict[str, Any]]:
    """A table's rows as plain values; what Python has no value for, such as nanoseconds, becomes text."""
    columns = {}
    for name in table.column_names:
        try:
            columns[name] = table[name].to_pylist()
        except NO_VALUE:
            try:
                columns[name] = table[name].cast(pyarrow.string()).to_pylist()
            except NO_VALUE as error:
                raise TaskError(f"{path}: the column {name!r} cannot be read ({error}); drop or convert it") from error
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _text(path: Path) -> str:
    data = path.read_bytes()
    if data.startswith(b"version https://git-lfs"):
        raise TaskError(f"{path}: a pointer of Git LFS, not the file; run git lfs pull where it came from")
    if data.startswith(b"\x1f\x8b"):
        raise TaskError(f"{path}: is compressed by gzip; unpack it with gunzip")
    if not data.strip():
        raise TaskError(f"{path}: is empty; fetch it again")
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise TaskError(
            f"{path}: not UTF-8 at byte {error.start} ({error.reason}); save it as UTF-8, for example with "
            f"iconv -f latin1 -t utf-8"
        ) from error


def _loads(text: str) -> Any:
    return json.loads(text, parse_constant=_constant, parse_int=_whole_number)


def _whole_number(digits: str) -> int | str:
    try:
        return int(digits)
    except ValueError:
        return LongNumber(digits)


def _constant(name: str) -> float | None:
    """NaN is how pandas writes a missing value."""
    return None if name == "NaN" else float(name)


def _lines(path: Path, text: str) -> list[tuple[str, Any]] | None:
    """Read JSON lines, or return None if the first line is no JSON."""
    rows: list[tuple[str, Any]] = []
    for number, line in enumerate(text.split("\n"), 1):  # splitlines would cut texts at U+2028
        if line.strip():
            try:
                rows.append((f"line {number}", _loads(line)))
            except (ValueError, RecursionError) as error:
                if not rows:
                    return None
                raise TaskError(
                    f"{path}, line {number}: not JSON ({error}); mend the line, or fetch it again"
                ) from error
    return rows


def _rows_of(value: object, field: str) -> list[Any] | None:
    """The rows that a JSON value holds, or None if it holds none."""
    if isinstance(value, list):
        return value
    if not isinstance(value, Mapping) or not value:
        return None
    if field in value:
        return _rows_of_columns(value, field)
    if all(isinstance(row, Mapping) and field in row for row in value.values()):
        names = list(value)
        named = names != [str(i) for i in range(len(names))]  # else they are numbers that a tool wrote
        return [({"task_id": name} if named else {}) | dict(row) for name, row in value.items()]
    objects = [inner for inner in value.values() if isinstance(inner, Mapping)]
    if len(objects) > 1 and any(field in inner for inner in objects):
        return None  # not all are rows: to take the one that is would leave out the others
    held = [rows for inner in value.values() if isinstance(inner, list | Mapping) and (rows := _rows_of(inner, field))]
    held = [rows for rows in held if isinstance(rows[0], Mapping) and field in rows[0]]
    return held[0] if len(held) == 1 else None


def _rows_of_columns(columns: Mapping[str, Any], field: str) -> list[Any]:
    """Turn columns into rows: lists, or objects by index, as pandas writes them. What is one row already stays one."""
    first = columns[field]
    if all(isinstance(column, Mapping) for column in columns.values()):
        return [{name: column[key] for name, column in columns.items() if key in column} for key in first]
    if isinstance(first, list) and any(isinstance(cell, Mapping) for cell in first):  # a conversation: one row's value
        return [columns]
    if isinstance(first, list) and all(isinstance(c, list) and len(c) == len(first) for c in columns.values()):
        return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return [columns]


def _described(value: object) -> str:
    if isinstance(value, Mapping):
        return f"an object with the keys {', '.join(map(repr, list(value)[:5]))}" if value else "an empty object"
    return type(value).__name__
