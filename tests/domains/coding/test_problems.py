"""Rows of a data file are checked, and errors say what is wrong with which row."""

import json

import pytest
from coding_world import rows

from rlanything.domains.coding.problems import BadProblem, check_row, read_problems
from rlanything.domains.coding.trials import same_output
from rlanything.errors import TaskError

GOOD = {"question": "Print 1.", "test_method": "stdio", "test_time_limit": 1, "test_input": ["", "x"]}
GOOD |= {"test_output": ["1", "1"]}


def test_a_row_becomes_a_payload_without_its_repeated_tests():
    row = GOOD | {"test_input": ["", "x", "x"], "test_output": ["1", "1", "1"], "solution": "print(1)", "other": 5}
    assert check_row(row) == {
        "question": "Print 1.",
        "time_limit_s": 1.0,
        "tests": [["", "1"], ["x", "1"]],
        "solution": "print(1)",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": " "}, "question"),
        ({"question": None}, "question"),
        ({"test_method": "function"}, "test_method"),
        ({"test_time_limit": "1"}, "test_time_limit"),
        ({"test_time_limit": 0}, "test_time_limit"),
        ({"test_time_limit": float("nan")}, "test_time_limit"),
        ({"test_input": [], "test_output": []}, "not empty"),
        ({"test_input": ["x"]}, "found 1 and 2 texts"),
        ({"test_input": [1, 2]}, "list of texts"),
        ({"test_output": None}, "test_output"),
        ({"test_input": ["x", "x"], "test_output": ["1", "2"]}, "occurs twice"),
        ({"example_input": [1], "example_output": [2]}, "example_input"),
        ({"example_input": "1 2", "example_output": "3"}, "example_input"),
        ({"example_input": ["1"]}, "example_output"),
        ({"example_input": ["1", "2"], "example_output": ["3"]}, "found 2 and 1 texts"),
        ({"question": "Print \ud83d."}, "surrogate"),
        ({"test_output": ["1", "\ud83d"]}, "surrogate"),
        ({"test_input": ["x", "y" * (33 << 20)]}, "a test of 34603008 characters"),
    ],
)
def test_a_bad_row_is_named_by_what_is_wrong(change, message):
    with pytest.raises(BadProblem, match=message):
        check_row(GOOD | change)


def test_a_bad_row_is_refused_with_its_index_or_left_out_and_counted(tmp_path):
    file = tmp_path / "train.json"
    file.write_text(json.dumps([*rows(), {"question": "?"}, "no row"]))
    with pytest.raises(TaskError, match="row 6: test_input.*skip_bad"):
        read_problems(file, skip_bad=False)
    problems, bad = read_problems(file, skip_bad=True)
    assert [index for index, _ in problems] == [0, 1, 2, 3, 4, 5] and len(bad) == 2 and "row 7" in bad[1]


def test_a_repeated_name_is_refused_with_its_index_or_left_out(tmp_path):
    file = tmp_path / "train.json"
    file.write_text(json.dumps([GOOD | {"task_id": "one"}, GOOD | {"task_id": "two"}, GOOD | {"task_id": "one"}]))
    with pytest.raises(TaskError, match="row 2: task_id: 'one'"):
        read_problems(file, skip_bad=False)
    assert [index for index, _ in read_problems(file, skip_bad=True)[0]] == [0, 1]


@pytest.mark.parametrize("content", ["{", "{}", "[]", '[{"question": "?"}]', "\xff"])
def test_a_file_that_holds_no_problems_is_named(tmp_path, content):
    file = tmp_path / "train.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(TaskError, match="train.json"):
        read_problems(file, skip_bad=True)
    with pytest.raises(TaskError, match="download.py"):
        read_problems(tmp_path / "other.json", skip_bad=True)


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        ("1 2\n", "1  2", True),
        ("1 2", "1\n2\n\n", True),
        ("1 2", "1", False),
        ("1", "1.0", False),
        ("007", "7", False),
        ("Yes", "yes", False),
        ("0.333333", "0.3333333333", True),
        ("0.333333", "0.34", False),
        ("1e9", "1000000000.4", True),
        ("1.0", "nan", False),
        ("nan", "nan", True),
        ("1.5", "abc", False),
        ("", "", True),
    ],
)
def test_outputs_are_the_same_token_by_token_floats_within_a_tolerance(expected, found, same):
    assert same_output(expected, found, 1e-6) is same
