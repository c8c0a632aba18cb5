"""Programs are tried by the rules of their problem: on standard input, as a function, or by a checker program."""

from __future__ import annotations

import asyncio
import json

import pytest

from rlanything.config.schema import SandboxConfig
from rlanything.domains.coding.problems import Check, Rules
from rlanything.domains.coding.trials import Trials, describe
from rlanything.domains.programs import Programs
from rlanything.sandbox.protocol import Verdict

OK, WRONG, RUNTIME = Verdict.OK, Verdict.WRONG_ANSWER, Verdict.RUNTIME_ERROR
SOLUTION = "class Solution:\n    def twoSum(self, nums: List[int], target: int) -> List[int]:\n"
TWO_SUM = SOLUTION + (
    "        seen = defaultdict(int)\n        for i, x in enumerate(nums):\n"
    "            if target - x in seen: return [seen[target - x], i]\n            seen[x] = i\n"
)
ANY_DIVISOR = (
    "def check(input, expected, found):\n    n, d = int(input), int(found)\n    return 1 < d < n and n % d == 0\n"
)


@pytest.fixture(scope="module")
def trials():
    made = Trials(Programs(SandboxConfig(num_runner=1)), 1e-6)
    yield made
    made.programs.close()


def verdict(trials, program, given, wanted, **rules):
    return asyncio.run(trials.verdict(program, Check(given, wanted), 4.0, Rules(**rules)))


@pytest.mark.parametrize(
    ("program", "function", "given", "wanted", "expected"),
    [
        (TWO_SUM, "Solution.twoSum", "[2, 7, 11]\n9", "[0, 1]", OK),
        (TWO_SUM, "twoSum", "[2, 7, 11]\n9", "[0, 1]", OK),
        (TWO_SUM, "twoSum", "[2, 7, 11]\n9", "[1, 0]", WRONG),
        ("def f(a, b):\n    return a + b", "f", '"x"\n"y"', '"xy"', OK),
        ("def f(a, b):\n    return a + b", "f", '"x\u2028\x85"\n"y"', json.dumps("x\u2028\x85y"), OK),
        ("def f():\n    return None", "f", "", "null", OK),
        ("def f(x):\n    print('trace', x)\n    return x / 3", "f", "1", "0.3333333", OK),
        ("def f(x):\n    return tuple(x), {'a': x}", "f", "[1]", '[[1], {"a": [1]}]', OK),
        ("def f(x):\n    return deque(x)", "f", "[1]", "[1]", OK),
        ("def f(x):\n    return pow(x, 3, 5)", "f", "2", "3", OK),
        ("f = lambda x: x", "f", "true", "1", WRONG),
        ("from __future__ import annotations\ndef f(x: Any) -> Any:\n    return x", "f", "1", "1", OK),
        ("def f(x):\n    return x\nif __name__ == '__main__':\n    print(f(input()))", "f", "1", "1", OK),
        ("import sys\nsys.setrecursionlimit(10**6)\ndef f(n):\n    return n and f(n - 1)", "f", "20000", "0", OK),
        (
            "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
            "def f(x):\n    return P(x).x",
            *("f", "3", "3", OK),
        ),
        ("def f(x):\n    return 10**400", "f", "1", "0.5", WRONG),
        ("def f(x):\n    return 10**5000", "f", "1", "1" + "0" * 5000, OK),
        ("from decimal import *\ndef f(x):\n    return {'a': [Decimal('0.5')]}", "f", "1", '{"a": [0.5]}', OK),
        ("from fractions import *\ndef f(x):\n    return Fraction(x, 2)", "f", "1", "0.5", OK),
        ("def f(x):\n    return {3}", "f", "1", "[3]", OK),
        ("def g(x):\n    return x", "f", "1", "1", RUNTIME),
        ("def f(x, y):\n    return x", "f", "1", "1", RUNTIME),
        ("def f(x):\n    return object()", "f", "1", "1", RUNTIME),
        ("def f(x:\n", "f", "1", "1", RUNTIME),
        ("import os\ndef f(x):\n    os.write(1, b'1')\n    os._exit(0)", "f", "1", "2", WRONG),
    ],
)
def test_a_function_is_called_and_its_result_compared(trials, program, function, given, wanted, expected):
    found, said = verdict(trials, program, given, wanted, function=function)
    assert found is expected, said


REVERSE = """
class Solution:
    def reverse(self, head: Optional[ListNode]) -> Optional[ListNode]:
        last = None
        while head:
            head.next, last, head = last, head, head.next
        return last
"""
MERGE = """
class Solution:
    def merge(self, lists: List[Optional[ListNode]]) -> Optional[ListNode]:
        values = []
        for head in lists:
            while head:
                values.append(head.val)
                head = head.next
        first = None
        for value in sorted(values, reverse=True):
            first = ListNode(value, first)
        return first
"""
MIRROR = """
from __future__ import annotations
class TreeNode:
    def __init__(self, val=0, left=None, right=None):
        self.val, self.left, self.right = val, left, right
def mirror(root: TreeNode | None, times: int = 1) -> TreeNode | None:
    if root:
        root.left, root.right = mirror(root.right), mirror(root.left)
    return root
"""
DEPTH = """
def depth(root: Optional[TreeNode]) -> int:
    return 1 + max(depth(root.left), depth(root.right)) if root else 0
"""
OLD_HEADER = """
class ListNode(object):
    def __init__(self, x):
        self.val = x
        self.next = None
class Solution:
    def f(self, head: ListNode) -> ListNode:
        return head.next
"""
LEAVES = "def f(root: TreeNode) -> List[TreeNode]:\n    return [root.left, root.right]"


@pytest.mark.parametrize(
    ("program", "function", "given", "wanted"),
    [
        (REVERSE, "reverse", "[1, 2, 3]", "[3, 2, 1]"),
        (REVERSE, "Solution.reverse", "[]", "[]"),
        (MERGE, "merge", "[[1, 4], [], [2]]", "[1, 2, 4]"),
        (MERGE, "merge", "[]", "[]"),
        (MIRROR, "mirror", "[1, 2, 3, null, 4]", "[1, 3, 2, null, null, 4]"),
        (MIRROR, "mirror", "[1]\n2", "[1]"),
        (DEPTH, "depth", "[3, 9, 20, null, null, 15, 7]", "3"),
        (DEPTH, "depth", "[]", "0"),
        (OLD_HEADER, "f", "[1, 2]", "[2]"),
        (LEAVES, "f", "[1, 2, 3, null, 4]", "[[2, null, 4], [3]]"),
    ],
)
def test_nodes_of_linked_lists_and_trees_are_lists_in_json(trials, program, function, given, wanted):
    found, said = verdict(trials, program, given, wanted, function=function)
    assert found is OK, said


def test_an_error_in_a_function_shows_its_line(trials):
    _, said = verdict(trials, "def f(x):\n    y = x\n    return y.z", "1", "1", function="f")
    assert 'File "main.py", line 3' in said and "return y.z" in said


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("input()\nprint(2)", OK), ("input()\nprint(6)", OK), ("input()\nprint(5)", WRONG), ("print('no')", WRONG),
        ("print()", WRONG), ("1 / 0", RUNTIME),
    ],
)  # fmt: skip
def test_a_checker_takes_every_valid_answer(trials, program, expected):
    assert verdict(trials, program, "12", "3", checker=ANY_DIVISOR)[0] is expected


def test_a_checker_also_judges_what_functions_return(trials):
    same = "sorted(json.loads(found)) == json.loads(expected)"
    rules = {"function": "f", "checker": f"import json\ndef check(input, expected, found):\n    return {same}\n"}
    assert verdict(trials, "def f(x):\n    return x[::-1]", "[1, 2]", "[1, 2]", **rules)[0] is OK


def test_an_output_cannot_pose_as_the_checker(trials):
    wrong = "def check(input, expected, found):\n    print(found)\n    return False\n"
    assert verdict(trials, "print('right')", "1", "1", checker=wrong)[0] is WRONG


def test_a_checker_that_fails_makes_the_output_wrong_and_is_told_of(trials, caplog):
    broken = "def check(input, expected, found):\n    return 1 / 0\n"
    assert verdict(trials, "print(1)", "1", "1", checker=broken)[0] is WRONG
    assert "a checker failed" in caplog.text and "ZeroDivisionError" in caplog.text


def test_a_module_that_is_not_there_is_counted_by_its_name(trials):
    found, said = verdict(trials, "import sortedcontainers.sortedlist", "", "")
    assert describe(found, said) == "missing_module/sortedcontainers"
    assert describe(RUNTIME, "ZeroDivisionError") == "runtime_error" and describe(OK, "No module named 'x'") == "ok"


def test_a_checker_that_is_also_a_program_and_one_that_prints_are_asked_all_the_same(trials):
    as_program = "import sys\n" + ANY_DIVISOR + "if __name__ == '__main__':\n    print(check(*sys.argv[1:4]))\n"
    talks = "import atexit\natexit.register(print, 'bye')\nprint('hello')\n" + ANY_DIVISOR
    for checker in (as_program, talks):
        assert verdict(trials, "print(3)", "12", "2", checker=checker)[0] is OK
        assert verdict(trials, "print(5)", "12", "2", checker=checker)[0] is WRONG
