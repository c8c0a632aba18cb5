"""Rows of a data file are checked, and errors say what is wrong with which row."""

import json
from datetime import datetime

import pytest
from coding_world import rows

from rlanything.domains.coding.compare import same_output, same_value
from rlanything.domains.coding.problems import BadProblem, check_row
from rlanything.domains.rows import LongNumber, read_checked
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
    spaces = GOOD | {"test_input": ["x", "x ", "x\n"], "test_output": ["1", "2", "1"]}
    assert check_row(spaces)["tests"] == [["x", "1"], ["x ", "2"]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": " "}, "question"),
        ({"question": None}, "question"),
        (
            {"test_method": None, "fn_name": "f", "test_input": [[[LongNumber("7")]], [[1]]], "test_output": [1, 1]},
            "4,300 digits",
        ),
        ({"question": None, "prompt": "Print 1."}, "question.*rename the field 'prompt'"),
        ({"test_method": "function"}, "fn_name"),
        ({"test_method": "interactive"}, "test_method"),
        ({"test_method": 3}, "test_method"),
        ({"test_method": None, "fn_name": "a b"}, "fn_name: found 'a b'"),
        ({"test_time_limit": "soon"}, "test_time_limit"),
        ({"test_time_limit": "-1"}, "test_time_limit"),
        ({"test_time_limit": True}, "test_time_limit"),
        ({"test_time_limit": [1]}, "test_time_limit"),
        ({"test_time_limit": 0}, "test_time_limit"),
        ({"test_time_limit": 2000}, "test_time_limit: found 2000, expected seconds, above 0 and at most 600"),
        ({"test_time_limit": float("inf")}, "test_time_limit"),
        ({"test_input": [], "test_output": []}, "not empty"),
        ({"test_input": ["x"]}, "found 1 and 2 texts"),
        ({"test_input": [{}, "x"]}, "list of texts"),
        ({"test_input": [True, "x"]}, "list of texts"),
        ({"test_input": [None, "x"]}, "list of texts"),
        ({"test_input": {"a": 1}}, "expected a list"),
        ({"test_output": [float("inf"), "1"]}, "found inf, expected a list of texts"),
        ({"test_output": [float("nan"), "1"]}, "found nan, expected a list of texts"),
        ({"test_input": None, "input_output": '{"inputs": [], "outputs": []}'}, "seem to be in 'input_output'"),
        ({"test_input": None, "public_tests": {"input": ["1"]}}, "seem to be in 'public_tests'"),
        ({"test_method": None, "fn_name": "class"}, "fn_name: found 'class'"),
        ({"test_method": None, "fn_name": "Solution.is"}, "fn_name: found 'Solution.is'"),
        ({"chain": b"\xff"}, "a value that JSON cannot hold"),
        ({"chain": [datetime.now()]}, "a value that JSON cannot hold"),
        ({"test_output": None}, "test_output"),
        ({"test_input": ["x", "x"], "test_output": ["1", "2"]}, "occurs twice"),
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


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"test_time_limit": None}, "time_limit_s", 4.0),
        ({"test_time_limit": float("nan")}, "time_limit_s", 4.0),
        ({"test_time_limit": "2"}, "time_limit_s", 2.0),
        ({"test_time_limit": "2.5 seconds"}, "time_limit_s", 2.5),
        ({"test_time_limit": "500 ms"}, "time_limit_s", 0.5),
        ({"test_method": None}, "tests", [["", "1"], ["x", "1"]]),
        ({"test_method": "stdin"}, "tests", [["", "1"], ["x", "1"]]),
        ({"test_input": '["", "x"]', "test_output": '["1", "1"]'}, "tests", [["", "1"], ["x", "1"]]),
        ({"test_input": '["1 2", "3"]', "test_output": "[3, 4.5]"}, "tests", [["1 2", "3"], ["3", "4.5"]]),
        ({"test_input": '["1 2"]', "test_output": "[[3]]"}, "tests", [["1 2", "[[3]]"]]),
        ({"test_input": "1 2", "test_output": "3"}, "tests", [["1 2", "3"]]),
        ({"test_input": "[1, 2]", "test_output": "3"}, "tests", [["[1, 2]", "3"]]),
        ({"test_input": [["1 2", "3"], [""]], "test_output": [["3"], ["4"]]}, "tests", [["1 2\n3", "3"], ["", "4"]]),
        ({"test_output": [3, 2.5]}, "tests", [["", "3"], ["x", "2.5"]]),
        ({"test_input": ["a\r\nb", "c"]}, "tests", [["a\nb", "1"], ["c", "1"]]),
        ({"test_input": ["x", "x"], "test_output": ["1 2", "1\n2\n"]}, "tests", [["x", "1 2"]]),
        ({"test_input": ["x", "x\n"], "test_output": ["1", "1"]}, "tests", [["x", "1"]]),
        ({"example_input": "1 2", "example_output": "3"}, "example_input", ["1 2"]),
        ({"example_input": None, "example_output": None}, "example_input", None),
        ({"example_input": [1], "example_output": [2]}, "example_output", ["2"]),
        ({"solution": ["print(1)", "print(2)"]}, "solution", "print(1)"),
        ({"solution": {"language": [2, 3], "solution": ["int main", "print(1)"]}}, "solution", "print(1)"),
        ({"solution": {"language": [2], "solution": ["int main"]}}, "solution", None),
        ({"solution": []}, "solution", None),
        ({"task_id": 0}, "task_id", "0"),
        ({"task_id": 17.0}, "task_id", "17"),
        ({"kind": ["dp", "graphs"]}, "kind", "dp, graphs"),
        ({"kind": 3}, "kind", "3"),
        ({"test_method": None, "fn_name": "f", "test_input": ["1\n[2]", "3\n4"], "test_output": ["1", "{}"]}, "tests",
         [["1\n[2]", "1"], ["3\n4", "{}"]]),
        ({"test_method": None, "fn_name": "S.f", "test_input": [[1, "a"], [2, None]], "test_output": ["b", [True]]},
         "tests", [['1\n"a"', '"b"'], ["2\nnull", "[true]"]]),
        ({"test_method": None, "fn_name": "S.f", "test_input": [[1], [2]], "test_output": [1, 2]}, "function", "S.f"),
        ({"fn_name": "f", "test_method": "stdio"}, "function", None),
        ({"test_input": ["x", "x"], "test_output": ["1", "2"], "checker": "def check(a, b, c):\n    return True"},
         "tests", [["x", "1"]]),
    ],
)  # fmt: skip
def test_a_row_is_taken_as_converters_write_it(change, field, value):
    assert check_row(GOOD | change).get(field) == value


def test_a_bad_row_is_refused_with_its_index_or_left_out_and_counted(tmp_path):
    file = tmp_path / "train.json"
    file.write_text(json.dumps([*rows(), {"question": "?"}, "no row"]))
    with pytest.raises(TaskError, match="row 6: test_input.*skip_bad"):
        read_problems(file, skip_bad=False)
    problems, bad = read_problems(file, skip_bad=True)
    assert [index for index, _ in problems] == [0, 1, 2, 3, 4, 5] and len(bad) == 2 and "row 7" in bad[1]


def read_problems(file, skip_bad):
    return read_checked(file, "question", check_row, skip_bad)


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
        ("1", "1.0", True),
        ("10", "1e1", True),
        ("10", "10.0000001", False),
        ("0", "-0.0", True),
        ("-0", "0", True),
        ("5", "+5", True),
        ("2.50", "2.5", True),
        ("0010", "10", False),
        ("12345678901234567890", "12345678901234567891", False),
        ("12345678901234567890.0", "12345678901234567890", True),
        ("1.0", "inf", False),
        ("1_0", "10", False),
        ("１", "1", False),
        ("1e99999", "1e99999", True),
        ("1", "1e-400", False),
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


def test_numbers_may_be_asked_for_to_the_letter():
    assert not same_output("10", "10.0", 1e-6, numbers_by_value=False)
    assert not same_output("0.3", "0.30000000000000004", 1e-6, numbers_by_value=False)
    assert same_output("10 x", "10\nx", 1e-6, numbers_by_value=False)


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        ("[1, 2]", "[1,2]", True),
        ('{"a": [1.5]}', '{"a": [1.50000001]}', True),
        ('{"a": 1}', '{"b": 1}', False),
        ("1", "1.0", True),
        ("1", "1.0000001", False),
        ("true", "1", False),
        ("1", "true", False),
        ("null", "null", True),
        ("NaN", "NaN", True),
        ("[NaN]", "[0.5]", False),
        ("Infinity", "Infinity", True),
        ("Infinity", "-Infinity", False),
        ('"a b"', '"a  b"', False),
        ("[1]", "[1, 2]", False),
        ("[]", "", False),
        ("[]", "[" * 100_000, False),
        ("1.5", "1" + "0" * 400, False),
        ("1" + "0" * 5000, "1" + "0" * 5000, True),
        ("1" + "0" * 5000, "1" + "0" * 4999 + "1", False),
        ("0.5", "1" + "0" * 5000, False),
    ],
)
def test_results_of_functions_are_compared_as_json(expected, found, same):
    assert same_value(expected, found, 1e-6) is same


@pytest.mark.parametrize(
    ("given", "wanted", "tests"),
    [
        ("[[[2, 7], 9], [[3, 3], 6]]", "[[0, 1], [0, 1]]", [["[2, 7]\n9", "[0, 1]"], ["[3, 3]\n6", "[0, 1]"]]),
        ("[[1], [2]]", "[3, 4]", [["1", "3"], ["2", "4"]]),
        ("[[1, 2], [3, 4]]", "5", [["[[1, 2], [3, 4]]", "5"]]),  # one call with a matrix
        ("[1, 2]", "[5]", [["[1, 2]", "[5]"]]),  # one call with a list
        (["9" * 5000], ["9" * 5000], [["9" * 5000, "9" * 5000]]),
    ],
)
def test_calls_of_a_function_may_all_be_json_in_one_text(given, wanted, tests):
    found = check_row({"question": "q", "fn_name": "f", "test_input": given, "test_output": wanted})
    assert [list(pair) for pair in found["tests"]] == tests


def test_a_number_of_too_many_digits_is_named():
    with pytest.raises(BadProblem, match="test_output: a number of more than 4,300 digits; expected it as a text"):
        check_row({"question": "q", "test_input": ["1"], "test_output": [10**5000]})
