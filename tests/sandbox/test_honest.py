"""Ordinary programs run in the sandbox as they would anywhere."""

from dataclasses import replace

import pytest
from sandbox_world import LIMITS, OK, RUNTIME, execute

from rlanything.sandbox.kernel import SUPPORTED

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="the sandbox needs Linux")


def test_a_program_that_is_not_utf_8_fails_as_in_python(sandbox):
    result = execute(sandbox, b"x = '\xff\xfe'\nprint(1)")
    assert result.verdict is RUNTIME and "SyntaxError" in result.error


def test_ten_megabytes_of_output_are_read_in_time(sandbox):
    result = execute(sandbox, "print('x' * 10**7)")
    assert result.verdict is OK and len(result.output) == 10**7 + 1


def test_input_and_output_are_bytes(sandbox):
    data = bytes(range(256)) * 40_000
    result = execute(sandbox, "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])", data)
    assert result.verdict is OK and result.output == data[::-1]


def test_a_program_runs_as_a_script_does(sandbox):
    source = (
        "import sys\n"
        "if __name__ == '__main__':\n"
        "    n = int(input())\n"
        "    print(sys.argv, *range(n), exit is not None)\n"
    )
    result = execute(sandbox, source, b"3\n")
    assert result.output == b"['main.py'] 0 1 2 True\n", result


def test_the_same_program_gives_the_same_output_twice(sandbox):
    source = "import random\nprint(random.random(), hash('a'), {str(i) for i in range(20)})"
    assert execute(sandbox, source).output == execute(sandbox, source).output


HONEST = {  # ordinary programs: (source, what they print if their input is "3\\n1 2 3\\n")
    "open_zero": ("print(open(0).read().split())", "['3', '1', '2', '3']"),
    "dev_stdin": ("import sys\nsys.stdin = open('/dev/stdin')\nprint(input(), input())", "3 1 2 3"),
    "readlines": ("import sys\nprint(len(sys.stdin.readlines()))", "2"),
    "os_read": ("import os\nprint(os.read(0, 100))", "b'3\\n1 2 3\\n'"),
    "end_of_file": ("try:\n    [input() for _ in range(9)]\nexcept EOFError:\n    print('end')", "end"),
    "annotations": ("def f(x: int): pass\nprint(f.__annotations__['x'] is int)", "True"),
    "file_never_closed": ("out = open(1, 'w')\nout.write('42')", "42"),
    "original_stdout": ("import sys\nsys.__stdout__.write('42')", "42"),
    "closed_stdout": ("import sys\nprint('42')\nsys.stdout.close()", "42"),
    "rewrapped_stdout": (
        "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='ascii')\nprint('42')",
        "42",
    ),
    "own_stdout": (
        "import io, os, sys\nclass Fast(io.IOBase):\n    def __init__(self): self.text = io.StringIO()\n"
        "    def write(self, s): self.text.write(s)\n    def flush(self):\n"
        "        os.write(1, self.text.getvalue().encode())\n        self.text = io.StringIO()\n"
        "sys.stdout = Fast()\nprint('42')",
        "42",
    ),
    "no_stdout": ("import sys\nprint('42', flush=True)\nsys.stdout = None", "42"),
    "last_words": ("class A:\n    def __del__(self): print('bye')\na = A()", "bye"),
    "exits": ("import sys\nprint(1)\nsys.exit()", "1"),
    "exit_builtin": ("print(1)\nexit(0)", "1"),
    "at_exit": ("import atexit\natexit.register(print, 'last')\nprint('first')", "first\nlast"),
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(8) as pool:\n"
        "    print(sum(pool.map(int, range(100))))",
        "4950",
    ),
    "dataclass": ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nprint(P(3))", "P(x=3)"),
    "asyncio": ("import asyncio\nasync def main(): print('x')\nasyncio.run(main())", "x"),
    "interrupt": ("import signal\ntry:\n    signal.raise_signal(2)\nexcept KeyboardInterrupt:\n    print('x')", "x"),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_runs_as_it_would_anywhere(sandbox, name):
    source, expected = HONEST[name]
    result = execute(sandbox, source, b"3\n1 2 3\n", replace(LIMITS, num_thread=16))
    assert (result.verdict, result.output.decode().strip()) == (OK, expected), result


def test_a_recursive_program_in_a_thread_with_a_large_stack_runs(sandbox):
    source = (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 26)\n"
        "def f(n):\n    return 0 if n == 0 else 1 + f(n - 1)\n"
        "t = threading.Thread(target=lambda: print(f(50_000)))\nt.start()\nt.join()"
    )
    assert execute(sandbox, source).output == b"50000\n"
