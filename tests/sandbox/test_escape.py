"""Programs that read or change what belongs to the host or to other programs, or that use the network."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from sandbox_world import (
    LIMITS,
    OK,
    SECRET,
    Attack,
    check,
    denied,
    execute,
    refused,
)

from rlanything.sandbox.kernel import SUPPORTED
from rlanything.sandbox.pool import Sandbox
from rlanything.sandbox.program import ENVIRONMENT
from rlanything.sandbox.protocol import Execution

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="the sandbox needs Linux")
ATTACKS = {
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
    "environment": Attack(f"import os\nprint(dict(os.environ) == {ENVIRONMENT})", OK, "True\n"),
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
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gets_its_verdict_and_nothing_more(sandbox, name):
    check(sandbox, ATTACKS[name])


def test_the_suite_is_large_enough():
    assert len(ATTACKS) >= 30


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


def test_if_programs_cannot_be_isolated_the_sandbox_says_so_unless_that_is_allowed():
    start = "from rlanything.sandbox.pool import Sandbox; Sandbox(1, {}).close()"
    forbid = "echo 0 > /proc/sys/user/max_user_namespaces && exec {} -c '{}'"  # in the namespace of unshare

    def run(allow: bool) -> subprocess.CompletedProcess:
        line = ["unshare", "-Ur", "sh", "-c", forbid.format(sys.executable, start.format(allow))]
        return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)

    refused = run(False)
    assert refused.returncode == 1 and "programs cannot be isolated here" in refused.stderr, refused.stderr
    assert run(True).returncode == 0


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
