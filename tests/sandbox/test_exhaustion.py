"""Programs that exhaust the machine, outlive their time, or want a better verdict than they deserve.

Every verdict is right, and the next program runs as if nothing had happened.
"""

import asyncio
import threading
import time
from dataclasses import replace

import psutil
import pytest
from sandbox_world import (
    LIMITS,
    MEMORY,
    OK,
    OUTPUT,
    RUNTIME,
    TIME,
    Attack,
    check,
    denied,
    descendants,
    execute,
    refused,
)

from rlanything.sandbox.kernel import SUPPORTED
from rlanything.sandbox.pool import Sandbox
from rlanything.sandbox.protocol import Execution, Verdict

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="the sandbox needs Linux")
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


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gets_its_verdict_and_nothing_more(sandbox, name):
    check(sandbox, ATTACKS[name])


def test_the_suite_is_large_enough():
    assert len(ATTACKS) >= 40


def test_as_much_output_as_is_allowed_is_no_flood(sandbox):
    assert execute(sandbox, "import os\nos.write(1, bytes(16 << 20))").verdict is OK
    assert execute(sandbox, "import os\nos.write(1, bytes(16 << 20)); os.write(1, b'x')").verdict is OUTPUT


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


def test_a_broken_runner_is_the_sandbox_s_fault_and_is_replaced(sandbox):
    with Sandbox(1) as own:
        execute(own, "pass")
        runner = own._idle.get()
        own._idle.put(runner)
        process = psutil.Process(runner._process.pid)
        processes = [process, *process.children(recursive=True)]
        process.kill()
        psutil.wait_procs(processes[1:], timeout=10)  # they end by PDEATHSIG, a moment later
        assert execute(own, "print(1)").verdict is Verdict.SANDBOX_ERROR and own.restarts == 1
        assert execute(own, "print(1)").output == b"1\n"


def test_closing_the_sandbox_ends_all_that_it_started():
    before = descendants()
    with Sandbox(3) as own:
        asyncio.run(own.run(b"print(1)", b"", LIMITS))
        started = descendants() - before  # others may come and go: what earlier tests have left
        assert started
    deadline = time.monotonic() + 5
    while descendants() & started and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not descendants() & started


def test_closing_waits_for_no_program():
    own = Sandbox(1)
    closing = threading.Timer(1.0, own.close)
    closing.start()
    result = execute(own, "import time\ntime.sleep(600)", limits=replace(LIMITS, wall_s=600.0))
    closing.join()
    assert result.verdict is Verdict.SANDBOX_ERROR and "closed" in result.error


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
