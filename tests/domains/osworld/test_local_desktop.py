"""Real desktops on this machine: tasks, typing, isolation, limits, and what is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import psutil
import pytest
from desktop_world import desktop_domain, needs_desktops, options, with_desktop

from rlanything.domains.osworld.actions import Action, read_response, spoken
from rlanything.domains.osworld.desktops.backends import make_pool
from rlanything.domains.osworld.desktops.client import DesktopFault
from rlanything.domains.osworld.desktops.local import PREFIX, sweep
from rlanything.types import Direction, Message, Task

pytestmark = [pytest.mark.integration, needs_desktops]


def folders() -> set[str]:
    """Folders of this process's desktops."""
    return {path.name for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}{os.getpid()}-*")}


def isolated() -> list[int]:
    """Processes of desktops below this one."""
    return [p.pid for p in psutil.Process().children(recursive=True) if p.name() in ("bwrap", "Xvfb")]


def num_images(messages: list[Message]) -> int:
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    return sum(part["type"] == "image" for part in parts)


def play(domain, task: Task, actions) -> tuple[list, object]:
    """(observations, score) of an episode with these actions."""

    async def run():
        env = domain.make_env(task)
        try:
            seen = [await env.reset()]
            for action in actions:
                seen.append(await env.step(action.to_json()))
            return seen, await env.score(seen[-1])
        finally:
            await env.close()

    return asyncio.run(run())


@pytest.fixture
def domain(tmp_path):
    made = desktop_domain(tmp_path, size=4, eval_size=4, desktops=1, spares=0, infeasible=0.5)
    yield made
    made.close()
    assert not folders() and not isolated()


@pytest.mark.parametrize(
    ("split", "number"), [("train", 0), ("train", 1), ("eval_out_of_distribution", 0), ("eval_out_of_distribution", 1)]
)
def test_scripted_solution_solves_a_generated_task_and_without_its_work_nothing_is_solved(domain, split, number):
    family = domain.world.families[domain.tasks(split)[number].payload["family"]]
    name, verifier = next((n, v) for n, v in family.verifiers.items() if v.feasible)
    task = Task(id=family.id, payload={"family": family.id, "verifier": name, "instruction": verifier.instruction})
    seen, score = play(domain, task, verifier.solution)
    assert score.success and score.reward == 1.0
    assert [o.label for o in seen[1:]] == [1] * len(verifier.solution)
    assert seen[1].seconds.keys() == {"action", "settle", "screenshot"} and min(seen[1].seconds.values()) > 0
    seen, score = play(domain, task, verifier.solution[-1:])
    assert not score.success and score.reward == 0.0 and seen[-1].label == -1 and seen[-1].done


def test_demonstrations_are_scripts_as_the_policy_the_judge_and_the_rewriter_read_them(domain):
    tasks, families, most = domain.tasks("train"), domain.world.families, domain.options.max_screens
    acted = list(islice(domain.demonstrations("policy", "train", 0), 6))
    ends = [i for i, c in enumerate(acted) if read_response(c.messages[-1]["content"]).kind == "terminate"]
    first = acted[: ends[0] + 1]
    scripts = [v.solution for task in tasks for v in families[task.payload["family"]].verifiers.values()]
    assert tuple(read_response(c.messages[-1]["content"]) for c in first) in scripts
    assert [num_images(c.messages) for c in first] == [min(i + 1, most) for i in range(len(first))]
    assert acted[0].tools == domain.tools() and all(spoken(c.messages[-1]["content"]) for c in acted)

    judged = list(islice(domain.demonstrations("reward", "train", 0), 12))
    scores = [domain.judging.parse(c.messages[-1]["content"])[0] for c in judged]
    assert set(scores) == {1, -1} and all(num_images(c.messages) == 2 for c in judged)

    [chosen] = islice(domain.demonstrations("rewriter", "train", 0), 1)
    answer = chosen.messages[-1]["content"]
    asked = chosen.messages[-2]["content"]
    [family] = [f for f in families.values() if all(f"{n}: {v.instruction}" in asked for n, v in f.verifiers.items())]
    task = next(task for task in tasks if task.payload["family"] == family.id)
    task = Task(id=task.id, payload={**task.payload, "verifier": "another", "instruction": "other words"})
    variant = domain.rewriting.parse(answer, task, Direction.HARDER, "variant").payload
    assert variant["instruction"] == family.verifiers[variant["verifier"]].instruction


def test_only_giving_up_solves_what_cannot_be_done(domain):
    family = next(
        f
        for t in domain.tasks("train")
        if (f := domain.world.families[t.payload["family"]]) and not all(v.feasible for v in f.verifiers.values())
    )
    name = next(n for n, v in family.verifiers.items() if not v.feasible)
    task = Task(id=family.id, payload={"family": family.id, "verifier": name, "instruction": "x"})
    for status, solved in (("failure", True), ("success", False)):
        _, score = play(domain, task, [Action(kind="terminate", status=status)])
        assert score.success is solved
    _, score = play(domain, task, [Action(kind="wait", time=0.0)])  # a step limit is no word of the agent
    assert not score.success


TEXTS = (
    "plain words", "a<b> {c} [d] (e)", "quotes ' \" ` and \\ back", "umlaut é ß ñ Ø É", "中文 テスト", "emoji 😀 🎉",
    "line\nand\nlines", "tab\tand tab", "$HOME ~ ! # % ^ & * | ; : ? /", "trailing space ", "--delay 5 -- key Return",
    "\n", "x" * 300, "".join(chr(c) for c in range(0x391, 0x3CA) if c != 0x3A2),
    "".join(map(chr, range(0x4E00, 0x4E40))), "".join(map(chr, range(0x4F00, 0x4F20))),
)  # fmt: skip


def test_text_of_any_kind_arrives_exactly_in_an_editor():
    async def use(desktop):
        guest = desktop.guest
        await guest.upload("~/t.txt", b"")
        await guest.execute("mousepad ~/t.txt > /dev/null 2>&1 &", shell=True)
        await asyncio.sleep(1)
        await guest.screenshot(3)
        got = []
        for text in TEXTS:
            await guest.perform(Action(kind="key", keys=("ctrl", "a")))
            await guest.perform(Action(kind="key", keys=("delete",)))
            await guest.perform(Action(kind="type", text=text))
            await guest.screenshot(1)
            await guest.perform(Action(kind="key", keys=("ctrl", "s")))
            await guest.screenshot(1)
            got.append(((await guest.download("~/t.txt")) or b"").decode())
        return got

    got = with_desktop(use)
    assert [text.removesuffix("\n") for text in got] == [text.removesuffix("\n") for text in TEXTS]


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
    harmless = {"mount", "cat /proc/1/environ | tr '\\0' '\\n' | grep SECRET", "ls /tmp/rlanything*", "ls /home/*/.ssh"}
    broken_out = {c: t for c, t in told.items() if t[0] == 0 and c not in harmless and t[1].strip() not in ("", "lo")}
    assert not broken_out
    assert "SECRET" not in "".join(output for _, output in told.values()) + state.output
    assert state.output.startswith("1000")
    assert set(os.listdir("/")) == before and not Path("/usr/bin/owned").exists()
    assert not folders()


HOSTILE_ACTIONS = (
    {"action": "key", "keys": ["ctrl", "alt", "t"]},
    {"action": "type", "text": "touch /tmp/typed_mark ~/typed_mark; rm -rf /usr /opt /run/desk /etc 2> /dev/null\n"},
    {"action": "type", "text": "'); __import__('os').system('touch /tmp/typed_mark2'); print('"},
    {"action": "type", "text": "\x1b]0;title\x07 \x1b[2J \x03\n"},
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
    assert num_invalid == 5 and not done
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
        ("python3 -c \"import mmap, time; m = mmap.mmap(-1, 2**31); m.write(b'x' * 2**31); time.sleep(60)\"", "memory"),
    ],
)
def test_agent_that_takes_too_much_ends_its_episode_unsolved(command, why):
    seen, score = hog(command, processes=300, memory_mib=900)
    assert why in seen.text and seen.label == -1
    assert not score.success
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


@pytest.mark.parametrize(
    "command", ["kill -9 -1", "pkill -9 Xvfb", "pkill -STOP Xvfb", "pkill -STOP -f server.py", SEGMENTS]
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


def test_failing_set_up_step_is_named(domain):
    family = domain.world.families[domain.tasks("train")[0].payload["family"]]
    broken = [{"type": "execute", "parameters": {"command": "echo no such disk >&2; exit 3", "shell": True}}]
    object.__setattr__(family, "config", tuple(broken))
    with pytest.raises(DesktopFault, match=r"set-up step 1 \(execute\).*ended with 3.*no such disk"):
        play(domain, domain.tasks("train")[0], [])


def test_spare_that_died_is_not_leased():
    async def run():
        pool = make_pool(options(desktops=1, spares=1))
        try:
            first = await pool.lease()
            while not pool._ready:
                await asyncio.sleep(0.05)
            pool._ready[0].process.kill()
            pool._ready[0].process.wait()
            await pool.release(first)
            second = await pool.lease()
            return len(await second.guest.screenshot())
        finally:
            pool.close()

    assert asyncio.run(run())
    time.sleep(0.2)
    assert not isolated()


def test_pool_that_is_closed_while_desktops_boot_leaves_nothing():
    async def run():
        pool = make_pool(options(desktops=2, spares=2))
        desktop = await pool.lease()
        await asyncio.sleep(0.1)  # the spares boot now
        pool.close()
        with pytest.raises(DesktopFault):
            await desktop.guest.screenshot()
        await pool.release(desktop)
        await asyncio.sleep(0.5)
        assert not folders() and not isolated()

    asyncio.run(run())


TRAINER = """
import asyncio, sys
sys.path[:0] = {paths!r}
from desktop_world import options
from rlanything.domains.osworld.actions import Action
from rlanything.domains.osworld.desktops.backends import make_pool
from rlanything.domains.osworld.desktops.verify import share

async def main(phase):
    pool = make_pool(options(desktops=1, spares=1))
    if phase == "boot":
        print("now", flush=True)
    desktop = await pool.lease()
    guest = desktop.guest
    work = {{
        "set up": lambda: guest.execute("sleep 0.2; echo a > b", shell=True),
        "act": lambda: guest.perform(Action(kind="type", text="ab")),
        "settle": lambda: guest.screenshot(0.5),
        "evaluate": lambda: share(guest, [{{"kind": "command", "command": "sleep 0.2; echo", "output": "x"}}]),
    }}
    while True:
        await work.get(phase, guest.screenshot)()
        print("now", flush=True)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("phase", ["boot", "set up", "act", "settle", "evaluate"])
def test_killed_trainer_leaves_no_process_and_the_next_run_sweeps_its_folders(phase):
    program = TRAINER.format(paths=[str(Path(__file__).parent), str(Path(__file__).parents[2])])
    trainer = subprocess.Popen([sys.executable, "-c", program, phase], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout.readline()
    time.sleep(0.3)
    below = psutil.Process(trainer.pid).children(recursive=True)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    _, alive = psutil.wait_procs(below, timeout=10)
    assert below and not alive
    assert sweep() >= 1
    assert not list(Path(tempfile.gettempdir()).glob(f"{PREFIX}{trainer.pid}-*"))
