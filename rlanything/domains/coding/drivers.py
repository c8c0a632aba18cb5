"""Programs that the sandbox executes in place of a model's own: one calls its function, the other checks its output.

Both read standard input and write standard output, as every program in the sandbox does. Pure.
"""

import inspect
import json
import re

from rlanything.domains.coding import nodes

RIGHT = "right"  # what a checker's driver prints if the output is right

# Solutions of problems with a function rely on the names that LeetCode provides. `builtins` comes last, because `math`
# has another `pow`.
_NAMES = "typing collections heapq bisect itertools functools math builtins"
_PRELUDE = "".join(f"from {module} import *\n" for module in _NAMES.split()) + (
    "import bisect, collections, functools, heapq, itertools, math, operator, random, re, string, sys, typing\n"
)
_NODE = re.compile(r"\b(ListNode|TreeNode)\b")

_CALL = """\
import json, linecache, numbers, sys, types
program, name, nodes = {program!r}, {function!r}, {nodes!r}
sys.modules["solution"] = types.ModuleType("solution")  # dataclasses look their module up
space = sys.modules["solution"].__dict__
exec({prelude!r}, space)
exec(nodes, helpers := {{}})
space.update({{node: helpers[node] for node in ("ListNode", "TreeNode") if nodes}})
arguments = [json.loads(line) for line in sys.stdin.read().split("\\n") if line.strip()]
answer, sys.stdout = sys.stdout, sys.stderr  # what the program prints is not its answer
linecache.cache["main.py"] = (len(program), None, program.splitlines(keepends=True), "main.py")
exec(compile(program, "main.py", "exec"), space)
owner, _, method = name.rpartition(".")
if not owner and hasattr(space.get("Solution"), name):  # the prelude may have a function of that name
    owner = "Solution"
if (owner or name) not in space:
    raise NameError(f"the program defines no {{owner or name}}")
function = getattr(space[owner](), method) if owner else space[name]

def plain(value):  # what JSON has no form for: arrays, decimals and fractions, sets and iterators
    if hasattr(value, "tolist"):
        return value.tolist()
    return float(value) if isinstance(value, numbers.Number) else list(value)

value = helpers["call_with_nodes"](function, arguments, space) if nodes else function(*arguments)
result = json.dumps(value, default=plain)
print(result, file=answer)
"""

_CHECK = """\
import json, linecache, sys, types
program, case = {program!r}, json.load(sys.stdin)
checker = sys.modules["checker"] = types.ModuleType("checker")  # it does not run as __main__, whatever it does there
answer, sys.stdout = sys.stdout, sys.stderr  # what the checker prints is not its answer
linecache.cache["checker.py"] = (len(program), None, program.splitlines(keepends=True), "checker.py")
exec(compile(program, "checker.py", "exec"), checker.__dict__)
right = checker.check(case["input"], case["expected"], case["found"])
print({right!r} if right else "wrong", file=answer)
"""


def calling(program: str, function: str) -> str:
    """A program that reads a function's arguments as JSON, one a line, and prints its result as JSON.

    `function` is a name that `program` defines, or `Class.method`. A bare name may be a method of the class `Solution`.
    A parameter or a result that is annotated as ListNode or TreeNode is a list in JSON (`nodes`).
    """
    text = inspect.getsource(nodes) if _NODE.search(program) else ""
    return _CALL.format(program=program, function=function, prelude=_PRELUDE, nodes=text)


def checking(checker: str) -> str:
    """A program that reads what `checker_input` writes, and prints RIGHT if `checker` says so."""
    return _CHECK.format(program=checker, right=RIGHT)


def checker_input(given: str, expected: str, found: str) -> str:
    """The standard input of a checker's program."""
    return json.dumps({"input": given, "expected": expected, "found": found})
