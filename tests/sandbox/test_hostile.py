"""Programs that try to escape, to exhaust the machine, or to get a better verdict than they deserve.

Every verdict is right, nothing of the host is read or changed, and the next program runs as if nothing had happened.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from rlanything.sandbox.kernel import SUPPORTED
from rlanything.sandbox.pool import Sandbox
from rlanything.sandbox.protocol import Execution, Limits, Verdict

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="the sandbox needs Linux")
LIMITS = Limits(time_s=1.0, wall_s=4.0, memory_mb=256, output_mb=16, num_thread=4, files_mb=4)
OK, RUNTIME, TIME = Verdict.OK, Verdict.RUNTIME_ERROR, Verdict.TIME_LIMIT
MEMORY, OUTPUT = Verdict.MEMORY_LIMIT, Verdict.OUTPUT_LIMIT
SECRET = "the input of another program"


@dataclass(frozen=True)
class Attack:
    """A program, its possible verdicts, and its expected output (None: any)."""

    source: str
    verdict: Verdict | tuple[Verdict, ...]
    output: str | None = None
    limits: Limits = LIMITS


def refused(call: str, setup: str = "import os") -> Attack:
    """A program that prints "refused" if a call raises OSError. Any other output is a way out of the sandbox."""
    return Attack(
        f"{setup}\ntry:\n    print('done', {call})\nexcept OSError as e:\n    print('refused')", OK, "refused\n"
    )


LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"


def denied(call: str) -> Attack:
    """A program whose system call, made through the C library, returns -1."""
    return Attack(f"{LIBC}print({call})", OK, "-1\n")


ATTACKS = {
    # exhausting memory, time, processes, files
    "fork_bomb": Attack("import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass", TIME),
    "fork_bomb_that_gives_up": Attack("import os\nwhile True:\n    os.fork()", RUNTIME),
    "thread_bomb": Attack(
        "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        RUNTIME,
    ),
    "memory_bomb_at_once": Attack("x = bytearray(10**11)", MEMORY),
    "memory_bomb_by_and_by": Attack("x = []\nwhile True:\n    x.append(bytearray(1 << 20))", MEMORY),
    "memory_bomb_of_small_objects": Attack("x = []\nwhile True:\n    x.append([x])", (MEMORY, TIME)),
    "memory_bomb_in_threads": Attack(
        "import threading\nx = []\ndef grow():\n    while True:\n        x.append(bytearray(1 << 20))\n"
        "for _ in range(3):\n    threading.Thread(target=grow).start()\ngrow()",
        (MEMORY, TIME),
    ),
    "time_in_children": refused("os.fork()"),
    "time_in_threads": Attack(
        "import threading, zlib\nx = bytes(1 << 24)\ndef burn():\n    while True:\n        zlib.crc32(x)\n"
        "for _ in range(3):\n    threading.Thread(target=burn).start()\nburn()",
        TIME,
    ),
    "memory_in_pipes": denied("(libc.vmsplice(os.pipe()[1], 0, 0, 0))"),
    "memory_in_files": Attack(
        "i = 0\nwhile True:\n    open(f'/tmp/{i}', 'wb').write(bytes(1 << 20))\n    i += 1", RUNTIME
    ),
    "many_files": Attack("i = 0\nwhile True:\n    open(f'/tmp/{i}', 'w').close()\n    i += 1", RUNTIME),
    "many_descriptors": Attack("import os\nwhile True:\n    os.dup(0)", RUNTIME),
    "memory_in_memory_files": refused("os.memfd_create('x')"),
    "memory_in_shared_segments": denied("libc.shmget(0, 1 << 30, 0o1666)"),
    "cpu_bomb": Attack("while True:\n    pass", TIME),
    "cpu_bomb_in_c": Attack("x = 3 ** 10**8", TIME),
    "cpu_bomb_in_a_regular_expression": Attack("import re\nre.match('(a+)+b', 'a' * 40)", TIME),
    "cpu_bomb_at_compile_time": Attack("x = " + "-" * 50_000 + "1", (RUNTIME, MEMORY)),
    "deep_recursion": Attack(
        "import sys\nsys.setrecursionlimit(10**9)\ndef f():\n    f()\nf()", (RUNTIME, MEMORY, TIME)
    ),
    "sleeper": Attack("import time\ntime.sleep(600)", TIME),
    "waits_for_input_that_never_comes": Attack("import os\nr, w = os.pipe()\nos.read(r, 1)", TIME),
    "stdout_flood": Attack("while True:\n    print('x' * 10**6)", OUTPUT),
    "stderr_flood": Attack("import sys\nwhile True:\n    sys.stderr.write('x' * 10**6)", OUTPUT),
    "sparse_stdout": Attack("import os\nos.ftruncate(1, 10**12)", (RUNTIME, OUTPUT)),
    # signals, and processes that outlive the program
    "ignores_sigterm": Attack(
        "import signal\nfor s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU):\n"
        "    signal.signal(s, signal.SIG_IGN)\nwhile True:\n    pass",
        TIME,
    ),
    "kills_everyone": Attack(
        "import os, signal\ntry:\n    os.kill(-1, signal.SIGKILL)\nexcept ProcessLookupError:\n    print('alone')",
        OK,
        "alone\n",
    ),
    "kills_the_first_process": Attack("import os, signal\nos.kill(1, signal.SIGKILL)\nprint('alive')", OK, "alive\n"),
    "stops_the_first_process": Attack("import os, signal\nos.kill(1, signal.SIGSTOP)\nprint('alive')", OK, "alive\n"),
    "kills_its_group": Attack("import os, signal\nos.killpg(0, signal.SIGKILL)", OK),
    "stops_itself": Attack("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", OK),
    "crashes": Attack("import ctypes\nctypes.string_at(0)", RUNTIME),
    "aborts": Attack("import os\nos.abort()", RUNTIME),
    "daemon": Attack("import os\nos.fork()\nos.setsid()", RUNTIME),
    "thread_that_goes_on": Attack(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\nprint('main')",
        OK,
        "main\n",
    ),
    "shell_out": refused("os.system('echo out') and exec('raise OSError')"),
    "exits_without_flushing": Attack("import os\nprint('lost')\nos._exit(0)", OK, ""),
    "exit_status": Attack("import sys\nprint('right')\nsys.exit(3)", RUNTIME, "right\n"),
    # reading what belongs to others
    "the_host_s_files": refused("open('/etc/passwd').read()"),
    "home": refused("os.listdir(os.path.expanduser('~root'))"),
    "proc": refused("os.listdir('/proc')"),
    "the_parent_s_memory": refused("open(f'/proc/{os.getppid()}/mem', 'rb')"),
    "the_parent_by_ptrace": denied("libc.ptrace(16, os.getppid(), 0, 0)"),
    "the_parent_by_process_vm_readv": denied("libc.process_vm_readv(os.getppid(), 0, 0, 0, 0, 0)"),
    "inputs_of_others_in_the_interpreter": Attack(
        "import gc, sys\nframe, held = sys._getframe(), gc.get_objects()\nwhile frame:\n"
        "    held.append(frame.f_locals)\n"
        f"    frame = frame.f_back\nprint(sum({SECRET[::-1]!r}[::-1] in repr(o) for o in held if o is not held))",
        OK,
        "0\n",
    ),
    "descriptors_left_open": Attack(
        "import os\nopen_ones = []\nfor fd in range(3, 64):\n    try:\n        os.fstat(fd)\n"
        "        open_ones.append(fd)\n"
        "    except OSError:\n        pass\nprint(open_ones)",
        OK,
        "[]\n",
    ),
    "environment": Attack("import os\nprint(dict(os.environ))", OK, "{}\n"),
    "what_the_program_before_left": Attack(
        "import os\nprint(os.listdir('/tmp'))\nopen('/tmp/left', 'w').write('x')", OK, "[]\n"
    ),
    # writing what belongs to others
    "writes_the_root": refused("open('/x', 'w')"),
    "writes_the_library": refused("open(os.__file__, 'a')"),
    "removes_the_library": refused("os.remove(os.__file__)"),
    "symlink_out": refused("(os.symlink('/etc/passwd', '/tmp/l'), open('/tmp/l').read())"),
    "dot_dot": refused("open('/tmp/' + '../' * 20 + 'etc/passwd').read()"),
    "hard_link_of_the_library": refused("os.link(os.__file__, '/tmp/l')"),
    "device_node": refused("os.mknod('/tmp/sda', 0o60600, os.makedev(8, 0))", "import os"),
    "chroot_escape": refused("os.chroot('/tmp')"),
    "remounts": denied("libc.mount(b'none', b'/', b'', 32, b'')"),
    "new_user_namespace": denied("libc.unshare(0x10000000)"),
    "new_process_by_clone": denied(
        "libc.syscall(56 if os.uname().machine == 'x86_64' else 220, 0x10000011, 0, 0, 0, 0)"
    ),
    "locks_that_others_see": refused("fcntl.flock(open(os.__file__), fcntl.LOCK_EX)", "import fcntl, os"),
    "touches_a_device": refused("os.utime('/dev/null')"),
    "becomes_root": refused("os.setuid(0)"),
    "raises_its_limits": Attack(
        "import resource\ntry:\n    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nexcept ValueError:\n"
        "    print('refused')",
        OK,
        "refused\n",
    ),
    "runs_a_shell": refused("os.execv('/bin/sh', ['sh', '-c', 'echo out'])"),
    "runs_an_interpreter": refused("os.execv(sys.executable, ['python'])", "import os, sys"),
    # the network
    "network": refused("socket.create_connection(('1.1.1.1', 53), 1)", "import socket"),
    "loopback": refused("socket.create_connection(('127.0.0.1', 22), 1)", "import socket"),
    "a_server": refused("socket.socket().bind(('0.0.0.0', 0))", "import socket"),
    "abstract_sockets_of_the_host": refused(
        "[socket.socket(socket.AF_UNIX).connect(n) for n in ('\\0/tmp/.X11-unix/X0', '/run/docker.sock')]",
        "import socket",
    ),
    # getting a better verdict
    "patches_the_exit": Attack(
        "import os, sys, atexit, threading\nos._exit = lambda code: None\nsys.exit = os._exit\n"
        "atexit.register(1 .real.__add__)\n1/0",
        RUNTIME,
    ),
    "patches_print_and_builtins": Attack(
        "import builtins\nbuiltins.compile = builtins.exec = None\nprint('mine')", OK, "mine\n"
    ),
    "looks_for_the_runner": Attack(
        "import sys\nprint([m for m in sys.modules if 'rlanything' in m])\nimport rlanything", RUNTIME, "[]\n"
    ),
    "breaks_the_library_for_the_next": Attack(
        "import math, os\nmath.sqrt = None\nos._exit = None\nimport builtins\nbuiltins.print = None", (OK, RUNTIME)
    ),
    "null_bytes": Attack("print(1)\0", RUNTIME),
    "not_a_program": Attack("I cannot help with that.", RUNTIME),
}


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(2) as sandbox:
        assert sandbox.isolated
        yield sandbox


def execute(sandbox: Sandbox, source: str | bytes, stdin: bytes = b"", limits: Limits = LIMITS) -> Execution:
    given = source.encode() if isinstance(source, str) else source
    return asyncio.run(sandbox.run(given, stdin, limits))


def descendants() -> set[int]:
    """Return the ids of all descendants of this process."""
    return {p.pid for p in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gets_its_verdict_and_nothing_more(sandbox, name):
    attack = ATTACKS[name]
    for _ in range(2):  # starts both runners
        execute(sandbox, "pass", SECRET.encode())
    before, restarts = descendants(), sandbox.restarts
    started = time.monotonic()
    result = execute(sandbox, attack.source, limits=attack.limits)
    assert time.monotonic() - started < attack.limits.wall_s + 5, "the host stays responsive"
    expected = attack.verdict if isinstance(attack.verdict, tuple) else (attack.verdict,)
    assert result.verdict in expected, result
    assert attack.output is None or result.output.decode() == attack.output, result
    assert descendants() <= before, "a process was left behind"
    after = execute(sandbox, "import math\nprint(int(math.sqrt(int(input()))))", b"49\n")
    assert (after.verdict, after.output) == (OK, b"7\n"), "the next program runs as if nothing had happened"
    assert sandbox.restarts == restarts


def test_the_suite_is_large_enough():
    assert len(ATTACKS) >= 40


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
        "    def write(self, s): self.text.write(s)\n    def flush(self): os.write(1, self.text.getvalue().encode())\n"
        "sys.stdout = Fast()\nprint('42')",
        "42",
    ),
    "no_stdout": ("import sys\nprint('42', flush=True)\nsys.stdout = None", "42"),
    "last_words": ("class A:\n    def __del__(self): print('bye')\na = A()", "bye"),
    "no_environment": ("import os\nprint(dict(os.environ))", "{}"),
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


def test_a_program_that_is_killed_from_outside_is_the_sandbox_s_fault(sandbox):
    async def main() -> Execution:
        under_way = asyncio.ensure_future(sandbox.run(b"import time\ntime.sleep(3)", b"", LIMITS))
        await asyncio.sleep(0.5)
        [program] = descendants() - before
        psutil.Process(program).kill()
        return await under_way

    execute(sandbox, "pass")
    before = descendants()
    assert asyncio.run(main()).verdict is Verdict.SANDBOX_ERROR


def test_a_program_that_cannot_be_started_is_the_sandbox_s_fault(sandbox):
    result = execute(sandbox, "print(1)", limits=replace(LIMITS, time_s=float("inf")))
    assert result.verdict is Verdict.SANDBOX_ERROR and "could not be started" in result.error
    assert execute(sandbox, "print(1)").output == b"1\n"


def test_no_program_finds_what_an_earlier_one_read(sandbox):
    secret = b"needle" * 2000
    scan = (
        "import ctypes, sys\nlibc = ctypes.CDLL(None)\nlibc.sbrk.restype = ctypes.c_void_p\nend = libc.sbrk(0)\n"
        "found = 0\nfor page in range(end - (8 << 20), end, 4096):\n    import os\n    r, w = os.pipe()\n"
        "    if libc.write(w, ctypes.c_void_p(page), 4096) == 4096:\n"
        "        found += os.read(r, 4096).count(b'needle'[::-1][::-1] * 3)\n    os.close(r), os.close(w)\nprint(found)"
    ).replace("b'needle'[::-1][::-1] * 3", "bytes([110, 101, 101, 100, 108, 101]) * 3")
    for _ in range(4):
        execute(sandbox, "pass", secret)
    result = execute(sandbox, scan, limits=replace(LIMITS, time_s=5.0, wall_s=20.0))
    assert (result.verdict, result.output) == (OK, b"0\n"), result


def test_as_much_output_as_is_allowed_is_no_flood(sandbox):
    assert execute(sandbox, "import os\nos.write(1, bytes(16 << 20))").verdict is OK
    assert execute(sandbox, "import os\nos.write(1, bytes(16 << 20)); os.write(1, b'x')").verdict is OUTPUT


def test_a_recursive_program_in_a_thread_with_a_large_stack_runs(sandbox):
    source = (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 26)\n"
        "def f(n):\n    return 0 if n == 0 else 1 + f(n - 1)\n"
        "t = threading.Thread(target=lambda: print(f(50_000)))\nt.start()\nt.join()"
    )
    assert execute(sandbox, source).output == b"50000\n"


def test_a_broken_runner_is_the_sandbox_s_fault_and_is_replaced(sandbox):
    with Sandbox(1) as own:
        execute(own, "pass")
        runner = own._idle.get()
        own._idle.put(runner)
        psutil.Process(runner._process.pid).kill()
        assert execute(own, "print(1)").verdict is Verdict.SANDBOX_ERROR and own.restarts == 1
        assert execute(own, "print(1)").output == b"1\n"


def test_executions_side_by_side_do_not_meet(sandbox):
    async def many() -> list[Execution]:
        source = (
            b"import os, time\n"
            b"open('/tmp/me', 'x').write(input())\n"
            b"time.sleep(0.2)\n"
            b"print(open('/tmp/me').read(), os.listdir('/tmp'))"
        )
        with Sandbox(4) as own:
            return await asyncio.gather(*(own.run(source, b"%d\n" % i, LIMITS) for i in range(12)))

    assert [r.output for r in asyncio.run(many())] == [b"%d ['me']\n" % i for i in range(12)]


@pytest.fixture
def closed():
    """A folder that no other user may enter. It is not in /tmp, because programs get a /tmp of their own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def test_an_interpreter_in_a_folder_that_others_may_not_enter(closed, monkeypatch):
    """Such a folder is /root or a home. The runner becomes another user, who cannot open that path again."""
    library = closed / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    unneeded = shutil.ignore_patterns("site-packages", "dist-packages", "test", "__pycache__", "config-*", "idlelib")
    shutil.copytree(os.path.dirname(os.__file__), library, ignore=unneeded, symlinks=True)
    interpreter = closed / "python"
    interpreter.write_text(f'#!/bin/sh\nPYTHONHOME={closed} exec {os.path.realpath(sys.executable)} "$@"\n')
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    with Sandbox(1) as own:
        result = execute(own, "import fractions\nprint(fractions.__file__)")
    assert result.output.decode() == f"{library}/fractions.py\n", result


def test_closing_the_sandbox_ends_all_that_it_started():
    before = descendants()
    with Sandbox(3) as own:
        asyncio.run(own.run(b"print(1)", b"", LIMITS))
        assert descendants() - before
    deadline = time.monotonic() + 5
    while descendants() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not descendants() - before


def test_if_programs_cannot_be_isolated_the_sandbox_says_so_unless_that_is_allowed():
    start = "from rlanything.sandbox.pool import Sandbox; Sandbox(1, {}).close()"
    forbid = "echo 0 > /proc/sys/user/max_user_namespaces && exec {} -c '{}'"  # in the namespace of unshare

    def run(allow: bool) -> subprocess.CompletedProcess:
        line = ["unshare", "-Ur", "sh", "-c", forbid.format(sys.executable, start.format(allow))]
        return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)

    refused = run(False)
    assert refused.returncode == 1 and "programs cannot be isolated here" in refused.stderr, refused.stderr
    assert run(True).returncode == 0


def test_without_isolation_limits_still_hold():
    with Sandbox(1, allow_unisolated=True) as own:
        own.isolated = False
        own._idle.get().close()
        own._idle.put(None)
        assert execute(own, "print(input())", b"x\n").output == b"x\n"
        assert execute(own, "while True:\n    pass").verdict is TIME
        assert execute(own, "import time\ntime.sleep(60)", limits=replace(LIMITS, wall_s=1.0)).verdict is TIME
        assert execute(own, "x = bytearray(10**11)").verdict is MEMORY
        before = descendants()
        daemon = "import os, time\nif not os.fork():\n    os.setsid()\n    os.fork()\n    time.sleep(600)"
        assert execute(own, daemon).verdict is OK and descendants() == before
        assert execute(own, ATTACKS["kills_its_group"].source).verdict is RUNTIME


def test_closing_waits_for_no_program():
    own = Sandbox(1)
    closing = threading.Timer(1.0, own.close)
    closing.start()
    result = execute(own, "import time\ntime.sleep(600)", limits=replace(LIMITS, wall_s=600.0))
    closing.join()
    assert result.verdict is Verdict.SANDBOX_ERROR and "closed" in result.error


def test_without_isolation_no_folder_is_left_if_the_caller_is_killed_meanwhile(tmp_path):
    there = str(tmp_path / "there")
    program = (
        "import os, time\n"
        f"open({there + '.part'!r}, 'w').write(os.getcwd())\n"
        f"os.rename({there + '.part'!r}, {there!r})\n"
        "time.sleep(3)\n"
    )
    caller = (
        "import asyncio, os, signal, threading\n"
        "from pathlib import Path\n"
        "from rlanything.sandbox.pool import Sandbox\n"
        "from rlanything.sandbox.protocol import Limits\n"
        "own = Sandbox(1, allow_unisolated=True)\n"
        "own.isolated = False\n"
        "own._idle.get().close()\n"
        "own._idle.put(None)\n"
        f"program = {program.encode()!r}\n"
        "thread = threading.Thread(target=lambda: print(asyncio.run(own.run(program, b'', Limits(wall_s=10.0)))))\n"
        "thread.start()\n"
        f"while thread.is_alive() and not Path({there!r}).exists(): pass\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", caller], capture_output=True, text=True, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL and not killed.stderr, killed
    assert not Path(
        (tmp_path / "there").read_text()
    ).exists()  # run() returned, so the runner, which shares its standard error, has ended too
