"""The interpreter: state without processes, and what a model reads of its cells."""

import asyncio
import contextlib
import io
import random
import re
from contextlib import closing

import psutil
import pytest

from rlanything.config.schema import SandboxConfig
from rlanything.domains.base import SandboxFailure
from rlanything.domains.programs import Programs
from rlanything.domains.reasoning.interpreter import CallLimits, Interpreter, clip


@pytest.fixture(scope="module")
def sandbox():
    made = Programs(SandboxConfig(num_runner=2))
    yield made
    made.close()


def session(sandbox, **limits):
    limits = CallLimits(**{"call_s": 2.0, "session_s": 60.0, "max_chars": 2000} | limits)
    return Interpreter(programs=sandbox, limits=limits)


def run(interpreter, *cells):
    async def calls():
        return [await interpreter.call(cell) for cell in cells]

    return asyncio.run(calls())


def test_names_last_and_the_last_expression_is_shown(sandbox):
    found = run(session(sandbox), "x = 20", "x + 1", "print(x); x * 2", "'a'", "None", "def f(n):\n  return n\n\nf(x)")
    assert [text for text, _ in found[1:]] == ["21", "20\n40", "'a'", found[0][0], "20"]
    assert found[0] == ("(no output: print what you want to see)", "ok") and {how for _, how in found} == {"ok"}


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("x = 3\nx + 1  # its double is 8", "4"),
        ("x = 3\nx + 1\n# done", "4"),
        ("for i in range(2):\n    i", ""),
        ("if True:\n    print(5)", "5"),
        ("x = {\n  'a': 1,\n}", ""),
        ("print(7)\nassert True", "7"),
        ("sum([\n  1,\n  2,\n])", "3"),
        ("def f():\n    return 1", ""),
        ("x = 3; x", "3"),
        ("x: int = 3", ""),
        ("import math\nmath.pi if False else 2", "2"),
        ("with open('a', 'w') as f:\n    f.write('b')", ""),
        ("x = 1\nx += 1", ""),
    ],
)
def test_the_last_line_is_shown_only_if_it_is_an_expression_and_never_breaks_its_cell(sandbox, cell, shown):
    assert run(session(sandbox), cell) == [(shown or "(no output: print what you want to see)", "ok")]


def test_an_error_ends_its_cell_alone_and_shows_its_own_frames(sandbox):
    found = run(
        session(sandbox), "x = 1\n1 / 0\nx = 2", "x", "def f():\n  raise ValueError('no')\nf()", "if", "exit(3)", "x"
    )
    assert found[0][1] == "exception" and found[1] == ("1", "ok") and found[5] == ("1", "ok")
    lines = found[2][0].splitlines()
    assert (
        lines[0].startswith("Traceback") and lines[-1] == "ValueError: no" and '"<cell 3>", line 2, in f' in found[2][0]
    )
    assert "main.py" not in found[2][0] and "SyntaxError" in found[3][0] and "SystemExit" in found[4][0]


def test_errors_and_output_keep_their_order_and_input_is_empty(sandbox):
    cell = "import sys\nprint('a'); print('b', file=sys.stderr); print('c')"
    found = run(session(sandbox), cell, "input()", "import os; os.write(1, b'raw')")
    assert found[0][0] == "a\nb\nc" and found[1][0].endswith("EOFError: EOF when reading a line")
    assert found[2][0] == "raw3"  # the value of the expression is the number of bytes


@pytest.mark.parametrize(
    ("cell", "how", "said"),
    [
        ("y = 2\nprint('before')\nwhile True: pass", "time_limit", "took too long"),
        ("y = 2\nz = bytearray(10**9 * 3)\nimport os; os.kill(os.getpid(), 9)", "exception", "MemoryError"),
        ("y = 2\nimport os; os._exit(3)", "ended", "ended the interpreter"),
        ("y = 2\nwhile True: print('x' * 10**6)", "output_limit", "wrote too much"),
    ],
)
def test_a_cell_that_is_stopped_leaves_nothing_behind_and_says_so(sandbox, cell, how, said):
    interpreter = session(sandbox, call_s=1.0)
    found = run(interpreter, "x = 1", cell, "x", "y")
    assert found[1][1] == how and said in found[1][0] and found[2] == ("1", "ok")
    if how != "exception":  # which ends its cell only
        assert "lost" in found[1][0] and "NameError" in found[3][0] and len(interpreter.cells) == 3
    if how == "time_limit":
        assert found[1][0].startswith("before")


def test_ten_megabytes_of_output_are_shown_as_their_beginning_and_end():
    with closing(Programs(SandboxConfig(num_runner=1))) as roomy:
        found = run(session(roomy, max_chars=200), "print('a' * 5_000_000 + 'b' * 5_000_000)\nx = 3", "x")
    shown, how = found[0]
    assert how == "ok" and len(shown) <= 200 and shown.startswith("aaa") and shown.endswith("bbb"), found[0]
    assert "characters left out" in shown and found[1] == ("3", "ok")


@pytest.mark.parametrize("cell", ["import os; os._exit(0)", "import os; os._exit(86)"])
def test_a_cell_that_ends_the_program_quietly_is_not_taken_for_one_that_ended(sandbox, cell):
    found = run(session(sandbox), "x = 1", cell, "x")
    assert found[2] == ("1", "ok") or cell.endswith("86)")  # who knows the status has only himself to blame


@pytest.mark.parametrize("cell", ["import sys; sys.stdout.close()", "import sys; sys.stdout = sys.stderr = None"])
def test_a_cell_that_breaks_its_streams_breaks_no_later_one(sandbox, cell):
    assert run(session(sandbox), "x = 1", cell, "print(x); x")[2] == ("1\n1", "ok")


def test_cells_inherit_no_future_of_the_notebook(sandbox):
    assert run(session(sandbox), "def f(a: int): pass\nf.__annotations__['a']")[0][0] == "<class 'int'>"


def test_earlier_cells_are_not_heard_again_whatever_they_write_with(sandbox):
    cells = [
        "import os\nprint('one')\nos.write(1, b'two')\nos.system",
        "import sys\nprint('three', file=sys.stderr)",
        "7",
    ]
    assert run(session(sandbox), *cells)[-1] == ("7", "ok")


def test_random_sessions_equal_a_real_interpreter(sandbox):
    rng = random.Random(0)
    for _ in range(8):
        interpreter, names = session(sandbox), {}
        for _ in range(8):
            a, b = rng.choice("abc"), rng.choice("abc")
            cell = rng.choice(
                [f"{a} = {rng.randint(0, 99)}", f"{a} = [{b}, 1]", f"print({a})", f"{a} = {b} + 1", f"del {a}",
                 f"for i in range(3): print(i, {a})", "import random; random.seed(3); print(random.random())"]
            )  # fmt: skip
            heard = io.StringIO()
            try:
                with contextlib.redirect_stdout(heard):
                    exec(cell, names)
                expected = heard.getvalue().strip()
            except Exception as error:
                expected = f"{heard.getvalue()}{type(error).__name__}: {error}"
            text, how = run(interpreter, cell)[0]
            shown = "\n".join(line for line in text.splitlines() if not line.startswith((" ", "Traceback")))
            assert shown == expected or (not expected and text.startswith("(no output"))
            assert how in ("ok", "exception")


@pytest.mark.slow
def test_a_thousand_sessions_hold_no_process(sandbox):
    run(session(sandbox), "1", "2")
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    sessions = [session(sandbox) for _ in range(1000)]
    for i, each in enumerate(sessions):
        run(each, f"x = {i}")
    assert [run(each, "x")[0][0] for each in sessions[:20]] == [str(i) for i in range(20)]
    assert {p.pid for p in psutil.Process().children(recursive=True)} <= before


def test_a_session_has_a_limit_of_its_own(sandbox):
    found = run(
        session(sandbox, call_s=5.0, session_s=0.5), "for i in range(10**8):\n  if i > 2 * 10**7: break", "1", "2"
    )
    assert found[-1] == ("(the session's 0.5 s are spent; no cell runs any more)", "session_limit")


def test_a_cell_that_sleeps_ends_and_is_charged_to_its_session():
    with closing(Programs(SandboxConfig(num_runner=1, wall_factor=2.0))) as hasty:
        found = run(session(hasty, call_s=0.5, session_s=0.8), "import time", *["time.sleep(99)"] * 3)
    assert [how for _, how in found[1:]] == ["time_limit", "time_limit", "session_limit"], found


def test_cells_that_slept_leave_time_for_the_next_one():
    with closing(Programs(SandboxConfig(num_runner=1, wall_factor=2.0))) as hasty:  # 2 s and what was charged twice
        found = run(session(hasty, call_s=0.5), "import time", *["time.sleep(1.4)"] * 3, "6 * 7")
    assert found[-1] == ("42", "ok"), found


def test_a_sandbox_that_breaks_is_a_failure_and_no_output():
    async def broken(sandbox):
        call = asyncio.create_task(session(sandbox, call_s=20.0).call("while True: pass"))
        await asyncio.sleep(0.5)
        for process in set(psutil.Process().children(recursive=True)) - before:
            with contextlib.suppress(psutil.NoSuchProcess):  # the runner's end is its program's
                process.kill()
        return await call

    before = set(psutil.Process().children(recursive=True))
    programs = Programs(SandboxConfig(num_runner=1))
    programs.start()
    with closing(programs), pytest.raises(SandboxFailure, match="runner failed"):
        asyncio.run(broken(programs))


def test_long_output_keeps_beginning_and_end():
    text = "".join(f"{i} " for i in range(1000))
    short = clip(text, 101)
    assert short.startswith("0 1 2") and short.endswith("998 999 ")
    [left_out] = re.findall(r"\n\((\d+) characters left out\)\n", short)
    kept = len(short) - len(f"\n({left_out} characters left out)\n")
    assert int(left_out) == len(text) - kept
    assert clip("abc", 3) == "abc" and all(n - 3 <= len(clip(text, n)) <= n for n in (100, 101, 1000, len(text) - 1))
