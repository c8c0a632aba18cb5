"""Data files are read in every form that tools write, and refused with the place of what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from rlanything.domains.rows import read_checked, read_rows, split_file
from rlanything.errors import TaskError

ROWS = [{"question": "Add.", "tests": ["1 é"]}, {"question": "Subtract.", "tests": []}]
COLUMNS = {"question": ["Add.", "Subtract."], "tests": [["1 é"], []]}


@pytest.mark.parametrize(
    "data",
    [
        json.dumps(ROWS).encode(),
        json.dumps(ROWS, ensure_ascii=False, indent=2).encode(),
        b"\n  " + json.dumps(ROWS).encode(),
        "\ufeff".encode() + json.dumps(ROWS).encode(),
        json.dumps(ROWS, ensure_ascii=False).encode("utf-16"),
        "\n".join(map(json.dumps, ROWS)).encode(),
        "\r\n\r\n".join(map(json.dumps, ROWS)).encode() + b"\r\n",
        json.dumps(COLUMNS).encode(),
        json.dumps({name: dict(enumerate(cells)) for name, cells in COLUMNS.items()}).encode(),
        json.dumps(dict(enumerate(ROWS))).encode(),
        json.dumps({"data": ROWS}).encode(),
        json.dumps({"version": 2, "license": ["MIT"], "rows": COLUMNS}).encode(),
    ],
)
def test_every_form_of_json_gives_the_same_rows(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "train.json").write_bytes(data)
    assert [row for _, row in read_rows(tmp_path / "train.json", "question")] == ROWS


def test_a_row_alone_and_lines_that_end_with_spaces_are_read(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text(json.dumps(ROWS[0]) + "  \n")
    assert read_rows(tmp_path / "one.jsonl", "question") == [("line 1", ROWS[0])]
    (tmp_path / "two.jsonl").write_text("\n" + json.dumps(ROWS[0]) + " \n\n" + json.dumps(ROWS[1]))
    assert read_rows(tmp_path / "two.jsonl", "question") == [("line 2", ROWS[0]), ("line 4", ROWS[1])]


def test_a_line_alone_whose_values_are_lists_is_a_row(tmp_path: Path) -> None:
    row = {"question": ["Add.", "Subtract."]}
    (tmp_path / "one.jsonl").write_text(json.dumps(row))
    assert read_rows(tmp_path / "one.jsonl", "question") == [("line 1", row)]


def test_a_lone_row_of_a_conversation_is_no_table_of_columns(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}
    (tmp_path / "one.json").write_text(json.dumps(row))
    assert [found for _, found in read_rows(tmp_path / "one.json", "messages")] == [row]


def test_separators_of_lines_within_texts_do_not_cut_lines(tmp_path: Path) -> None:
    rows = [{"question": "Add\u2028two\x85numbers\x0b."}] * 2
    text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "two.jsonl").write_text(text, encoding="utf-8")
    assert [row for _, row in read_rows(tmp_path / "two.jsonl", "question")] == rows


def test_columns_by_index_beside_a_value_are_one_row(tmp_path: Path) -> None:
    row = {"question": {"0": "Add."}, "version": 1}
    (tmp_path / "train.json").write_text(json.dumps(row))
    assert read_rows(tmp_path / "train.json", "question") == [("row 0", row)]


def test_an_object_of_named_rows_names_the_tasks(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(json.dumps({"p1": ROWS[0], "p2": ROWS[1] | {"task_id": "own"}}))
    assert [row["task_id"] for _, row in read_rows(tmp_path / "train.json", "question")] == ["p1", "own"]


def test_a_number_of_more_digits_than_python_reads_is_a_text(tmp_path: Path) -> None:
    digits = "7" * 5000
    for name in ("one.json", "one.jsonl"):
        (tmp_path / name).write_text(f'{{"question": "P", "test_output": [{digits}, 7]}}')
        assert [row["test_output"] for _, row in read_rows(tmp_path / name, "question")] == [[digits, 7]]


def test_parquet_is_read(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "train.parquet")
    assert [row for _, row in read_rows(split_file(tmp_path, "train"), "question")] == ROWS


def test_what_pandas_writes_for_a_missing_value_is_missing(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text('[{"question": "Add.", "limit": NaN, "other": -Infinity}]')
    assert read_rows(tmp_path / "train.json", "question")[0][1] == {
        "question": "Add.",
        "limit": None,
        "other": float("-inf"),
    }


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\x1f\x8b\x08", "gunzip"),
        (b'[{"question": 1},]', "neither JSON nor JSON lines"),
        (b'[{"question": "Ad', "neither JSON nor JSON lines"),
        (b'{"question": 1}\n{"question": 2', "line 2"),
        (b'{"a": 1}\n\n{"b"}\n', "line 3"),
        ('[{"question": "é"}]'.encode("latin-1"), "not UTF-8 at byte 15"),
        (b"3", "found int"),
        (b'"text"', "found str"),
        (b"{}", "an empty object"),
        (b'{"prompt": ["a"]}', "the keys 'prompt'"),
        (b'{"a": {"question": "Add."}, "b": {"task": "Take."}}', "the keys 'a', 'b'"),
        (b'{"train": {"question": ["Add."]}, "version": {"major": 1}}', "the keys 'train', 'version'"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' * 900 + b"[1]" + b"}" * 900, "nested too deeply"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "git lfs pull"),
    ],
)
def test_a_file_of_another_kind_is_named_with_the_place(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "train.json").write_bytes(data)
    with pytest.raises(TaskError, match="train.json.*" + words):
        read_rows(tmp_path / "train.json", "question")


def test_a_broken_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(TaskError, match="train.parquet: not a Parquet file"):
        read_rows(tmp_path / "train.parquet", "question")


def test_a_split_is_one_file(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no such file"):
        split_file(tmp_path, "train")
    (tmp_path / "train.jsonl").touch()
    assert split_file(tmp_path, "train").name == "train.jsonl"
    (tmp_path / "train.json").touch()
    with pytest.raises(TaskError, match=r"found train.json, train.jsonl, expected one"):
        split_file(tmp_path, "train")


NO_PYTHON_VALUE = {
    "nanoseconds": (pyarrow.array([1_700_000_000_000_000_001], pyarrow.timestamp("ns")), "2023-11-14 22:13:20.0000"),
    "a date": (pyarrow.array([10**7], pyarrow.date32()), "29349-01-26"),
    "a time zone": (pyarrow.array([1], pyarrow.timestamp("us", "Mars/Base")), ""),
    "bytes": (pyarrow.array([b"\xff"], pyarrow.binary()).view(pyarrow.string()), ""),
}


@pytest.mark.parametrize(("values", "text"), NO_PYTHON_VALUE.values(), ids=NO_PYTHON_VALUE)
def test_a_column_of_parquet_that_python_has_no_value_for_is_text_or_named(tmp_path, values, text):
    pyarrow.parquet.write_table(pyarrow.table({"question": ["a"], "made": values}), tmp_path / "train.parquet")
    if text:
        [(_, row)] = read_rows(tmp_path / "train.parquet", "question")
        assert row["question"] == "a" and row["made"].startswith(text)
    else:
        with pytest.raises(TaskError, match="train.parquet: the column 'made' cannot be read .*drop or convert it"):
            read_rows(tmp_path / "train.parquet", "question")


def test_a_task_id_that_an_unnamed_row_will_have_is_refused(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "a"}\n{"question": "b", "task_id": "train/000000"}\n')
    with pytest.raises(TaskError, match="line 2: task_id: 'train/000000' is the name of an earlier row too"):
        read_checked(path, "question", dict, skip_bad=False)
