"""A program finds in the sandbox what it finds under `python main.py < input`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlanything.sandbox.pool import Sandbox
from rlanything.sandbox.protocol import Execution, Limits, Verdict

INPUT = b"3\n1 2 3\n"

STREAM_ATTRIBUTES = """
import sys
for name in ("stdin", "stdout", "stderr"):
    stream = getattr(sys, name)
    for path in ("", "buffer", "buffer.raw"):
        part = stream
        for step in filter(None, path.split(".")):
            part = getattr(part, step)
        for attribute in sorted(dir(part)):
            if attribute.startswith("_"):
                continue
            try:
                value = getattr(part, attribute)
                if callable(value):
                    harmless = ("isatty", "fileno", "readable", "writable", "seekable")
                    value = value() if attribute in harmless else type(value).__name__
                elif not isinstance(value, (str, int, bool, type(None))):
                    value = type(value).__name__
            except Exception as error:
                value = repr(error)
            print(name, path, attribute, value, file=sys.__stdout__)
"""

# Each is printed with repr, after the modules that it names were imported.
EXPRESSIONS = """
sys.stdin is sys.__stdin__
sys.stdin.read()
sys.stdin.buffer.read()
input()
sys.stdin.readline()
sys.stdin.buffer.readline()
next(sys.stdin)
list(sys.stdin)
open(0).read()
open(0, closefd=False).read()
open(0, "rb").read()
io.open(0, closefd=False).read()
os.fdopen(0, closefd=False).read()
os.read(0, 100)
os.read(0, os.fstat(0).st_size)
open("/dev/stdin").read()
open("/dev/stdin", "rb").read()
open("/dev/fd/0").read()
open("/proc/self/fd/0").read()
io.open("/dev/stdin").read()
pathlib.Path("/dev/stdin").read_text()
pathlib.Path("/dev/stdin").open().read()
pathlib.Path("/dev/fd/0").read_bytes()
os.read(os.open("/dev/stdin", os.O_RDONLY), 100)
open("/dev/stdout", "w").write("x")
open("/dev/stderr", "w").write("x")
mmap.mmap(0, 0, access=mmap.ACCESS_READ)[:]
[line for line in fileinput.input()]
select.select([sys.stdin], [], [], 0)[0] != []
codecs.getreader("utf-8")(sys.stdin.buffer).read()
sys.stdin.seek(2)
sys.stdin.tell()
sys.stdin.reconfigure(encoding="latin-1")
sys.stdout.reconfigure(line_buffering=True)
len(sys.argv)
sys.argv[1:]
os.path.basename(sys.argv[0])
os.path.basename(__file__)
__name__
__spec__
__doc__
__package__
__cached__
__annotations__
__loader__ is None
type(__loader__).__name__
__builtins__.__name__
sorted(globals())[:9]
sys.modules["__main__"].__name__
sys.path[0] == os.getcwd()
sys.flags.isolated
sys.flags.optimize
sys.getrecursionlimit()
sys.getswitchinterval()
sys.gettrace()
sys.exc_info()
sys.getdefaultencoding()
sys.getfilesystemencoding()
sys.byteorder
sys.maxsize
sys.platform
sys.version_info[:2]
sys.executable != ""
exit
quit
copyright.__class__.__name__
help.__class__.__name__
print.__module__
open.__name__
open.__module__
open is io.open
io.open.__qualname__
os.open.__name__
threading.stack_size()
threading.stack_size.__name__
threading.active_count()
threading.current_thread().name
threading.current_thread() is threading.main_thread()
gc.isenabled()
gc.get_threshold()
signal.getsignal(signal.SIGINT).__name__
signal.getsignal(signal.SIGPIPE)
signal.getsignal(signal.SIGTERM)
locale.getpreferredencoding()
locale.getlocale()
locale.setlocale(locale.LC_ALL, "")
os.environ.get("HOME") is not None
os.environ.get("PATH") is not None
os.path.expanduser("~") != "~"
getpass.getuser() != ""
os.cpu_count() == multiprocessing.cpu_count()
len(os.sched_getaffinity(0)) > 0
multiprocessing.get_start_method()
os.isatty(0)
sys.stdin.isatty()
shutil.get_terminal_size().columns
platform.system()
platform.python_implementation()
tempfile.gettempdir()
socket.gethostname() != ""
time.tzname[0]
time.localtime(0).tm_hour
datetime.datetime.now().year > 2000
zoneinfo.ZoneInfo("Europe/Paris").utcoffset(datetime.datetime(2024, 1, 1)).seconds
uuid.uuid4().version
hash("a") == hash("a")
len(os.urandom(3))
len(secrets.token_bytes(3))
ctypes.CDLL(None) is not None
concurrent.futures.ThreadPoolExecutor(2).submit(int, "5").result()
list(concurrent.futures.ThreadPoolExecutor().map(abs, [-1]))
asyncio.run(asyncio.sleep(0, 3))
inspect.getsource(inspect.currentframe())[:6]
traceback.format_stack()[-1].split(",")[1:]
resource.setrlimit(resource.RLIMIT_STACK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_STACK, (2**28, -1))
threading.stack_size(2**26)
threading.stack_size(2**29)
threading.stack_size(10**9)
sys.setrecursionlimit(10**9)
sqlite3.connect(":memory:").execute("select 1").fetchone()
[__import__(m) and m for m in ("cmath", "array", "queue", "csv", "struct", "zlib", "hashlib", "base64", "textwrap")]
[open("x", "w").write("5"), open("x").read(), os.listdir(".")[-1:] != []]
open(__file__).readline()
os.path.isabs(__file__)
open(pathlib.Path(__file__)).readline()
inspect.getsource(sys.modules["__main__"])[:5]
open(b"/dev/stdin").read()
io.FileIO("/dev/stdin").read()
io.FileIO(0).fileno()
io.FileIO(b"/dev/fd/0").read(2)
isinstance(sys.stdin.buffer.raw, io.FileIO)
isinstance(io.FileIO("/dev/stdin"), io.FileIO) and isinstance(io.FileIO(0), io.RawIOBase)
isinstance(sys.stdin.buffer.raw, type("Own", (io.FileIO,), {}))
io.BufferedReader(io.FileIO("/dev/stdin")).readline()
open(pathlib.Path("/dev/stdin")).read()
open(sys.argv[0], "rb").readline()
os.path.basename(os.path.abspath(__file__))
[].pop()
setattr(sys, "excepthook", lambda kind, error, place: print("hook", error)) or 1 / 0
setattr(sys, "excepthook", lambda kind, error, place: sys.exit(5)) or 1 / 0
setattr(sys, "excepthook", lambda kind, error, place: 1 / 0) or [].pop()
setattr(sys, "excepthook", None) or int("x")
int("x")
1 / 0
undefined
exit(3)
sys.exit("bye")
sys.exit(-1)
sys.exit(300)
sys.exit(True)
sys.exit(2**70)
sys.exit(-(2**63))
os._exit(4)
""".strip().splitlines()


def program(expression: str) -> str:
    names = ("concurrent.futures", *sys.stdlib_module_names)
    used = [n for n in names if not n.startswith("_") and f"{n.split('.')[0]}." in expression]
    return "".join(f"import {name}\n" for name in sorted({"sys", *used})) + f"print(repr({expression}))\n"


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(1) as box:
        yield box


def in_sandbox(sandbox: Sandbox, source: str, limits: Limits | None = None) -> Execution:
    return asyncio.run(sandbox.run(source.encode(), INPUT, limits or Limits()))


def in_python(source: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    (folder / "main.py").write_text(source)
    (folder / "input").write_bytes(INPUT)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    environment |= {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "LANG": "C.UTF-8", "TZ": "UTC", "HOME": "/tmp"}
    environment |= {"USER": "user"}
    with open(folder / "input", "rb") as stdin:
        line = [os.path.realpath(sys.executable), "main.py"]
        return subprocess.run(
            line, cwd=folder, stdin=stdin, capture_output=True, env=environment, preexec_fn=heed_interrupts
        )


def heed_interrupts() -> None:
    """Programs in the background of a shell ignore SIGINT, and so do those that they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_every_public_attribute_of_the_standard_streams_is_that_of_python(sandbox, tmp_path):
    expected = in_python(STREAM_ATTRIBUTES, tmp_path).stdout.decode().splitlines()
    found = in_sandbox(sandbox, STREAM_ATTRIBUTES).output.decode().splitlines()
    assert len(expected) > 150
    # The sandbox's output is a file in memory, this process's is a pipe.
    differ = [(a, b) for a, b in zip(expected, found, strict=True) if a != b and "seekable" not in a]
    assert not differ


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_means_what_it_means_to_python(sandbox, tmp_path, expression):
    source = program(expression)
    expected, found = in_python(source, tmp_path), in_sandbox(sandbox, source)
    assert (found.exit_code & 0xFF, found.output) == (expected.returncode & 0xFF, expected.stdout), found.error
    assert found.error.splitlines()[-1:] == expected.stderr.decode().splitlines()[-1:]


AT_THE_END = {
    "a finaliser": """
import sys
class Writer:
    def __init__(self): self.parts = []
    def __call__(self, x): self.parts.append(str(x))
    def __del__(self): sys.stdout.write(" ".join(self.parts) + chr(10))
out = Writer()
out(int(input()) * 2)
""",
    "a generator that waits": """
import os, sys
def values():
    try:
        yield 1
    finally:
        sys.stdout.write("over")
        helper()
def helper(): os.write(1, b"helped")
waiting = values()
next(waiting)
""",
    "a file that nobody closed": """
import sys
out = open(1, "w", closefd=False)
out.write("kept")
class Last:
    def __del__(self): print("last", file=sys.stdout)
last = [Last()]
last.append(last)
""",
    "an exit function": """
import atexit
value = [1]
atexit.register(lambda: print(value))
value.append(2)
""",
}


@pytest.mark.parametrize("source", AT_THE_END.values(), ids=AT_THE_END)
def test_what_a_program_prints_while_it_ends_is_printed(sandbox, tmp_path, source):
    expected, found = in_python(source, tmp_path), in_sandbox(sandbox, source)
    assert expected.stdout and (found.exit_code, found.output) == (0, expected.stdout), found.error


def test_integers_have_any_number_of_digits(sandbox):
    source = "n = 3 ** 10500\nprint(len(str(n)), int(str(n)) == n)"
    assert in_sandbox(sandbox, source).output == b"5010 True\n"


@pytest.mark.parametrize("size", [2**26, 2**28, 2**29, 10**9])
def test_a_thread_may_have_a_stack_as_large_as_contest_programs_ask_for(sandbox, size):
    source = (
        f"import sys, threading\nsys.setrecursionlimit(10**7)\nthreading.stack_size({size})\n"
        "def f(n):\n    return 0 if n == 0 else 1 + f(n - 1)\n"
        "t = threading.Thread(target=lambda: print(f(50000)))\nt.start()\nt.join()"
    )
    assert in_sandbox(sandbox, source).output == b"50000\n"


def test_room_for_a_stack_is_no_memory_for_anything_else(sandbox):
    source = "import threading\nthreading.stack_size(10**9)\nx = bytearray(b'1' * (700 << 20))\nprint(len(x))"
    result = in_sandbox(sandbox, source, Limits(memory_mb=256, wall_s=120.0))
    assert result.verdict is Verdict.MEMORY_LIMIT


@pytest.mark.parametrize(
    "source",
    [
        "from multiprocessing import Pool\ndef f(x):\n    return x * x\n"
        "if __name__ == '__main__':\n    with Pool(2) as p:\n        print(sum(p.map(f, range(4))))",
        "import multiprocessing as mp\nwith mp.get_context('fork').Pool(64, maxtasksperchild=1) as p:\n"
        "    print(p.apply(pow, (2, 5)))",
        "from multiprocessing import Process, Queue, Value\nq = Queue()\n"
        "p = Process(target=q.put, args=(7,))\np.start()\np.join()\nprint(q.get(), p.exitcode, Value('i', 3).value)",
        "from concurrent.futures import ProcessPoolExecutor\nwith ProcessPoolExecutor(2) as e:\n"
        "    print(list(e.map(abs, [-1, 2])))",
        "from multiprocessing.pool import ThreadPool\nimport threading\nbarrier = threading.Barrier(10)\n"
        "print(len(ThreadPool(10).map(lambda i: barrier.wait(5), range(10), 1)))",
        "from multiprocessing.pool import ThreadPool\nprint(ThreadPool(3).map(abs, [-1, 2]))",
        "import multiprocessing as mp, ctypes\ntotals, n = mp.Array('i', 3), mp.Value(ctypes.c_long, 2, lock=True)\n"
        "def f(i):\n    with n.get_lock():\n        totals[i] += i; n.value += 1\n"
        "ps = [mp.Process(target=f, args=(i,), daemon=True) for i in range(3)]\n"
        "for p in ps:\n    p.start()\nfor p in ps:\n    p.join()\n"
        "print(list(totals), n.value, mp.Array('d', [1, 2])[:], ps[0].daemon, ps[0].is_alive())",
        "from multiprocessing.pool import Pool\nwith Pool(2) as p:\n"
        "    print(p.starmap(pow, [(2, 3), (3, 2)]), isinstance(p, Pool))",
        "from concurrent.futures import ProcessPoolExecutor\nclass E(ProcessPoolExecutor):\n    pass\n"
        "with E(max_workers=2) as e:\n    print(isinstance(e, ProcessPoolExecutor), list(e.map(abs, [-3])))",
        "from multiprocessing import Manager, Process\nwith Manager() as m:\n    d, l = m.dict(), m.list([1])\n"
        "    p = Process(target=l.append, args=(2,))\n    p.start()\n    p.join()\n    d['a'] = 1\n"
        "    print(dict(d), list(l))",
        "import concurrent.futures as cf\nprint(cf.ProcessPoolExecutor(max_workers=3).submit(sum, [1, 2]).result())",
    ],
)
def test_pools_of_processes_work(sandbox, tmp_path, source):
    expected, found = in_python(source, tmp_path), in_sandbox(sandbox, source)
    assert (found.verdict, found.output) == (Verdict.OK, expected.stdout), found
