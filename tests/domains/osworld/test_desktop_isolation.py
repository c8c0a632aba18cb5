"""An agent on a real desktop of this machine reaches nothing outside it, and takes no more than it may."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from desktop_world import (
    desktop_domain,
    few_desktops,
    folders,
    isolated,
    needs_desktops,
    options,
    play,
    with_desktop,
)

from rlanything.domains.osworld.actions import Action
from rlanything.types import Task

pytestmark = [pytest.mark.integration, needs_desktops]


@pytest.fixture
def domain(tmp_path):
    with few_desktops(tmp_path) as made:
        yield made


HOSTILE = (
    "cat /etc/shadow", "cat /etc/gshadow", "ls ~root", "ls /home/*/.ssh", "cat ~root/.bash_history",
    f"ls {Path(__file__).parents[3]}", "cat /proc/1/environ | tr '\\0' '\\n' | grep SECRET", "mount",
    "ls /tmp/rlanything*",
    "touch /etc/passwd", "touch /usr/bin/owned", "touch /x", "touch /opt/desk/server.py", "touch /opt/site/x",
    "touch /opt/home/x", "dd if=/dev/zero of=/dev/x bs=1M count=1", "mknod /tmp/disk b 254 0", "unshare -Ur id",
    "unshare -n true", "curl -m 2 -s http://pypi.org", "getent hosts pypi.org", "nsenter -t 1 -m ls", "chroot / ls",
    "mount -t tmpfs none /mnt", "su -c id", "kill -9 -1000000", "ls /sys/class/net", "cat /proc/kcore | head -c 1",
    "python3 -c \"import socket; socket.create_connection(('127.0.0.1', 22), 1)\"", "chmod u+s /usr/bin/bash",
)  # fmt: skip


def test_hostile_commands_read_and_write_nothing_outside_the_desktop(monkeypatch):
    monkeypatch.setenv("MY_SECRET", "SECRET_VALUE")
    before = set(os.listdir("/"))

    async def use(desktop):
        told = {}
        for command in HOSTILE:
            done = await desktop.guest.execute(command, shell=True, timeout_s=20)
            told[command] = (done.returncode, done.output)
        return told, await desktop.guest.execute("id -u; cat /proc/1/environ; ls /proc | grep -c '^[0-9]'", shell=True)

    told, state = with_desktop(use)
    own = {"mount": None, "ls /sys/class/net": "lo\n"}  # they show what the desktop has of its own
    assert not {c: t for c, t in told.items() if t[0] == 0 and own.get(c, "") not in (None, t[1])}
    assert "SECRET" not in "".join(output for _, output in told.values()) + state.output
    assert state.output.startswith("1000")
    assert set(os.listdir("/")) == before and not Path("/usr/bin/owned").exists()
    assert not folders()


HOSTILE_ACTIONS = (
    {"action": "key", "keys": ["ctrl", "alt", "t"]},
    {"action": "type", "text": "touch /tmp/typed_mark ~/typed_mark; rm -rf /usr /opt /run/desk /etc 2> /dev/null\n"},
    {"action": "type", "text": "'); __import__('os').system('touch /tmp/typed_mark2'); print('"},
    {"action": "type", "text": "\x1b]0;title\x07 \x1b[2J \x03\n"},
    {"action": "type", "text": "printf '\\033]0;title\\007 \\033[2J \\033[?1049h'\n"},
    {"action": "key", "keys": ["'); __import__('os').system('touch /tmp/typed_mark2')#"]},
    {"action": "key", "keys": ["ctrl", "alt", "delete"]},
    {"action": "key", "keys": ["ctrl", "alt", "backspace"]},
    {"action": "key", "keys": ["ctrl", "alt", "f1"]},
    {"action": "key", "keys": ["alt", "f4"]},
    {"action": "key", "keys": ["win", "l"]},
    {"action": "key", "keys": ["printscreen"]},
    {"action": "key_down", "keys": ["ctrl", "shift", "alt"]},
    {"action": "left_click", "coordinate": [999, 999]},
    {"action": "left_click", "coordinate": [-5, 99999]},
    {"action": "left_click", "coordinate": ["0); __import__('os').system('touch /tmp/typed_mark2'); (0", 1]},
    {"action": "left_click_drag", "coordinate": [0, 0]},
    {"action": "scroll", "pixels": 10**8, "coordinate": [500, 500]},
    {"action": "scroll", "pixels": float("inf")},
    {"action": "wait", "time": 10**8},
    {"action": "execute", "command": "touch /tmp/typed_mark2"},
)


def test_hostile_actions_reach_nothing_outside_the_desktop(domain):
    before = set(os.listdir("/"))
    terminal = "timeout 30 xdotool search --sync --onlyvisible --class gnome-terminal"

    async def run():
        env = domain.make_env(domain.tasks("train")[0])
        try:
            seen = await env.reset()
            invalid = []
            for arguments in HOSTILE_ACTIONS:
                call = json.dumps({"name": "computer_use", "arguments": arguments})
                parsed = domain.parse_action(f"<tool_call>{call}</tool_call>", seen)
                if parsed.action is None:
                    invalid.append(arguments)
                else:
                    seen = await env.step(parsed.action)
                if arguments == HOSTILE_ACTIONS[0]:
                    await env.desktop.guest.execute(terminal, shell=True)
            made = await env.desktop.guest.execute("ls ~/typed_mark /tmp/typed_mark /tmp/typed_mark2", shell=True)
            return len(invalid), made.output, seen.done
        finally:
            await env.close()

    num_invalid, made, done = asyncio.run(run())
    assert num_invalid == 6 and not done
    assert [path for path in made.split() if path.endswith("typed_mark")], "the commands ran"
    assert "/tmp/typed_mark2\n" not in made
    outside = [Path(tempfile.gettempdir(), name) for name in ("typed_mark", "typed_mark2")]
    assert not any(path.exists() for path in (*outside, Path.home() / "typed_mark"))
    assert set(os.listdir("/")) == before
    assert Path("/usr/bin/bwrap").exists() and Path("/etc/passwd").exists()


STEAL = (  # pidfd_getfd(2): a copy of another process's socket
    "python3 -c 'import ctypes, os, sys; p = os.pidfd_open(int(sys.argv[1])); get = ctypes.CDLL(None).syscall; "
    "sys.exit(all(get(438, p, n, 0) < 0 for n in range(3, 20)))' $P"
)


def test_agent_cannot_take_the_place_of_the_server():
    """Answers would be forged, and with them scores."""
    tries = (
        "rm /run/desk/server.sock",
        "cat /proc/$P/environ",
        "head -c 1 /proc/$P/mem",
        STEAL,
        "ls -d /run/desk /opt/desk/sockets",
        "fallocate -l 700M /run/big",
    )

    async def use(desktop):
        for_each = "for P in 1 2; do test -e /proc/$P || exit 7; {} && exit 0; done; exit 1"
        done = [await desktop.guest.execute(for_each.replace("{}", command), shell=True) for command in tries]
        files = sorted(path.name for path in desktop.folder.iterdir())
        return [each.returncode for each in done], files

    codes, files = with_desktop(use)
    assert codes == [1] * len(tries)
    assert files == ["8080.sock", "9222.sock", "machine-id", "passwd", "server.sock"]


ADD_KEY, SESSION = {"x86_64": 248, "aarch64": 217}[os.uname().machine], -3  # system call, this session's keyring
FIND = """python3 -c "
import ctypes, os
libc, at = ctypes.CDLL(None, use_errno=True), {'x86_64': 250, 'aarch64': 219}[os.uname().machine]
text = ctypes.create_string_buffer(64)
for keyring in (-3, -4, -5):
    found = libc.syscall(at, 10, keyring, b'user', b'rlanything-test', 0)
    libc.syscall(at, 11, found, text, 64)
print(text.value)
" """


def test_a_desktop_has_none_of_the_trainers_keys():
    libc = ctypes.CDLL(None)
    libc.syscall.restype = ctypes.c_long
    key = libc.syscall(ADD_KEY, b"user", b"rlanything-test", b"SECRET_KEY", ctypes.c_size_t(10), SESSION)
    if key < 0:
        pytest.skip("this machine lets nobody add keys")
    found = subprocess.run(FIND, shell=True, capture_output=True, text=True).stdout
    assert "SECRET_KEY" in found, "the trainer's own programs find it"

    async def use(desktop):
        return (await desktop.guest.execute(FIND, shell=True)).output

    seen = with_desktop(use)
    assert seen.startswith("b'") and "SECRET" not in seen


def test_an_untouched_desktop_solves_nothing_whatever_the_users_umask(tmp_path):
    domain = desktop_domain(tmp_path, size=20, desktops=1, spares=0)
    domain.tasks("train")
    verifiers = ((f.id, name, v) for f in domain.world.families.values() for name, v in f.verifiers.items())
    family, name = next((f, name) for f, name, v in verifiers if "owner alone" in v.instruction)
    before = os.umask(0o077)
    try:
        task = Task(id="t", payload={"family": family, "verifier": name, "instruction": "x"})
        assert not play(domain, task, [Action(kind="wait", time=0.0)])[1].success
    finally:
        os.umask(before)
        domain.close()


def test_desktops_do_not_see_each_other():
    async def use(first):
        from rlanything.domains.osworld.desktops.backends import local

        second = local(options())()
        try:
            await second.boot()
            await second.connect()
            await first.guest.upload("~/mine.txt", b"mine")
            await first.guest.upload("/tmp/mine.txt", b"mine")
            seen = await second.guest.execute(
                "ls ~/mine.txt /tmp/mine.txt; ps -e | grep -c Xvfb; ls /run/desk", shell=True
            )
            return seen.output
        finally:
            await second.close()

    seen = with_desktop(use)
    assert "mine" not in seen and seen.split()[0] == "1"


def hog(command: str, **limits) -> tuple:
    """(the last observation, score, the pool's faults) of an episode whose agent runs a command."""

    async def run(domain):
        env = domain.make_env(domain.tasks("train")[0])
        try:
            await env.reset()
            await env.desktop.guest.launch(command, shell=True)
            for _ in range(60):
                seen = await env.step(Action(kind="wait", time=0.5).to_json())
                if seen.done:
                    return seen, await env.score(seen)
            raise AssertionError("the desktop went on")
        finally:
            await env.close()

    with tempfile.TemporaryDirectory() as folder:
        domain = desktop_domain(Path(folder), size=1, desktops=1, spares=0, infeasible=0.0, **limits)
        try:
            return asyncio.run(run(domain))
        finally:
            domain.close()


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("for i in $(seq 5000); do sleep 100 & done", "processes"),
        ("python3 -c \"x = [b'x' * 2**20 for _ in range(1500)]; import time; time.sleep(60)\"", "memory"),
        (
            "python3 -c \"import os, time; f = os.memfd_create('x'); [os.write(f, b'x' * 2**20) for _ in range(1500)]; "
            'time.sleep(60)"',
            "memory",
        ),
        (
            'python3 -c "import threading, time; [threading.Thread(target=time.sleep, args=(60,)).start() for _ in '
            'range(2500)]"',
            "threads",
        ),
        ("python3 -c \"import mmap, time; m = mmap.mmap(-1, 2**31); m.write(b'x' * 2**31); time.sleep(60)\"", "memory"),
    ],
)
def test_agent_that_takes_too_much_ends_its_episode_unsolved(command, why):
    seen, score = hog(command, processes=300, memory_mib=900)
    assert why in seen.text and seen.label == -1
    assert not score.success
    assert not folders() and not isolated()


@pytest.mark.slow  # thousands of processes: other tests would wait
@pytest.mark.parametrize("bomb", ["bash -c ':(){ :|:& };:'", "python3 -c 'import os\nwhile True: os.fork()'"])
def test_agent_that_forks_without_end_ends_its_episode_unsolved(bomb):
    seen, score = hog(bomb, processes=300, memory_mib=900)
    assert "processes" in seen.text and seen.label == -1 and not score.success
    assert not folders() and not isolated()


def test_agent_that_fills_its_folders_fills_only_its_own_memory():
    async def use(desktop):
        fill = "for f in ~/x /tmp/x /var/tmp/x /dev/shm/x /run/x; do dd if=/dev/zero of=$f bs=1M count=200; done"
        await desktop.guest.execute(fill, shell=True)
        sizes = await desktop.guest.execute("du -sm ~ /tmp /var/tmp /dev/shm | cut -f1", shell=True)
        return [int(size) for size in sizes.output.split()], len(await desktop.guest.screenshot())

    sizes, shown = with_desktop(use, limit_mib=64)
    assert max(sizes) <= 65 and shown


SEGMENTS = (  # 20 segments of 64 MiB each, written and left behind
    'python3 -c "import ctypes; c = ctypes.CDLL(None); c.shmat.restype = ctypes.c_void_p; size = 2**26; '
    '[ctypes.memset(c.shmat(c.shmget(0, size, 0o600), None, 0), 1, size) for _ in range(20)]"'
)


EMPTY_FILES = "python3 -c \"[open(f'/dev/shm/{i}', 'w').close() for i in range(60_000)]\""
GRAB = """python3 -c "
import time
from Xlib import display
d = display.Display()
d.grab_server()
d.sync()
time.sleep(300)
" """
HOLD = """python3 -c "
import socket, time
held = []
for _ in range(2100):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].connect('/tmp/.X11-unix/X0')
time.sleep(300)
" """
STOP_AND_GO = """sh -c '
sleep 300 & P=$!
for i in $(seq 300); do kill -STOP $P; kill -CONT $P; done
exec 2> /dev/null; pkill -9 Xvfb' & exit"""


@pytest.mark.parametrize(
    "command",
    [
        *("kill -9 -1", "pkill -9 Xvfb", "pkill -STOP Xvfb", "pkill -STOP -f server.py", SEGMENTS),
        *(EMPTY_FILES, GRAB, HOLD, STOP_AND_GO),
    ],
)
def test_agent_that_kills_or_stops_its_desktop_ends_its_episode_unsolved(domain, command):
    async def run():
        env = domain.make_env(domain.tasks("train")[0])
        try:
            await env.reset()
            await env.desktop.guest.launch(f"sleep 0.2; {command}", shell=True)
            for _ in range(50):
                seen = await env.step(Action(kind="wait", time=0.1).to_json())
                if seen.done:
                    return seen, await env.score(seen)
        finally:
            await env.close()

    seen, score = asyncio.run(run())
    assert not score.success and seen.label == -1 and "its programs were ended" in seen.text
    assert play(domain, domain.tasks("train")[0], [])[0][0].images  # the pool gives a fresh one
