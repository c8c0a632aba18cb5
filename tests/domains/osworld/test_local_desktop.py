"""Real desktops on this machine: tasks, typing, isolation, limits, and what is left behind."""

from __future__ import annotations

import asyncio
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
from desktop_world import folders, isolated, needs_desktops, needs_oracle, options, play, with_desktop
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rlanything.domains.osworld.actions import Action, read_arguments, read_response, spoken
from rlanything.domains.osworld.desktops import local as local_desktop
from rlanything.domains.osworld.desktops.backends import local, make_pool
from rlanything.domains.osworld.desktops.client import DesktopFault
from rlanything.domains.osworld.desktops.local import PREFIX, sweep
from rlanything.domains.osworld.desktops.verify import share
from rlanything.types import Direction, Message, Task

pytestmark = [pytest.mark.integration, needs_desktops]


def num_images(messages: list[Message]) -> int:
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    return sum(part["type"] == "image" for part in parts)


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
    offered = {f.id: domain.world.offered(f.id) for f in families.values()}
    [family] = [f for f in families.values() if all(f"{n}: {text}" in asked for n, text in offered[f.id].items())]
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


TYPABLE = st.characters(exclude_categories=["Cs", "Cc", "Cn"]) | st.sampled_from("\n\t ")


def typed_in_editor(actions: list[Action]) -> list[str]:
    """The text of an editor that was empty, after each of the actions."""

    async def use(desktop):
        guest = desktop.guest
        await guest.upload("~/t.txt", b"")
        await guest.execute("mousepad ~/t.txt > /dev/null 2>&1 &", shell=True)
        await asyncio.sleep(1)
        await guest.screenshot(3)
        got = []
        for action in actions:
            await guest.perform(Action(kind="key", keys=("ctrl", "a")))
            await guest.perform(Action(kind="key", keys=("delete",)))
            await guest.perform(action)
            await guest.screenshot(1)
            await guest.perform(Action(kind="key", keys=("ctrl", "s")))
            await guest.screenshot(1)
            got.append(((await guest.download("~/t.txt")) or b"").decode().removesuffix("\n"))
        return got

    return with_desktop(use)


def test_text_of_any_kind_arrives_exactly_in_an_editor():
    got = typed_in_editor([Action(kind="type", text=text) for text in TEXTS])
    assert got == [text.removesuffix("\n") for text in TEXTS]


@pytest.mark.slow
@settings(max_examples=5, deadline=None, phases=[Phase.generate])  # to shrink an example takes a desktop each time
@given(texts=st.lists(st.text(TYPABLE, min_size=1, max_size=30), min_size=4, max_size=8))
def test_any_text_arrives_exactly_in_an_editor(texts):
    assert typed_in_editor([Action(kind="type", text=text) for text in texts]) == [t.removesuffix("\n") for t in texts]


def test_a_key_types_what_its_name_says():
    named = {"plus": "+", "space": " ", "shift+b": "B", **{key: key for key in 'Aa<>=~"\\|?(_'}}
    got = typed_in_editor([read_arguments({"action": "key", "keys": name}) for name in named])
    assert got == list(named.values())


def test_desktop_that_cannot_start_leaves_nothing_and_is_a_fault(monkeypatch):
    def refused(*given, **options):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(local_desktop.subprocess, "Popen", refused)
    with pytest.raises(DesktopFault, match="a desktop did not start: .*temporarily unavailable"):
        local(options())()
    assert not folders()


def test_screen_stands_still_only_once_no_program_works():
    """A window that is not drawn yet stands still, too."""

    async def use(desktop):
        await desktop.guest.screenshot(5)
        await desktop.guest.execute("timeout 3 sh -c 'while :; do :; done' > /dev/null 2>&1 &", shell=True)
        await desktop.guest.screenshot(12)
        return desktop.guest.settled_s

    assert 1.0 < with_desktop(use) < 12.0


def test_what_an_agent_locks_is_a_state_and_no_fault():
    """A fault would be played again, as often as the agent likes."""

    async def use(desktop):
        lock = "mkdir -p ~/a/b; echo x > ~/t.txt; chmod 000 ~/a/b ~/t.txt; mkfifo ~/pipe"
        await desktop.guest.execute(lock, shell=True)
        paths = ("~/t.txt", "~/pipe", "~/a", "~/a/b/c", "/etc/shadow")
        checks = [{"kind": "file_text", "path": path, "text": "x"} for path in paths]
        listed = await desktop.guest._post("/list_directory", {"path": "~/a"})
        return [await share(desktop.guest, [check]) for check in checks], listed

    shares, listed = with_desktop(use)
    assert set(shares) == {0.0}
    assert listed["directory_tree"]["children"] == [{"type": "directory", "name": "b", "children": []}]


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
from types import SimpleNamespace
sys.path[:0] = {paths!r}
from desktop_world import options
from rlanything.domains.osworld.actions import Action
from rlanything.domains.osworld.desktops import local as local_desktop
from rlanything.domains.osworld.desktops.backends import local, make_pool
from rlanything.domains.osworld.desktops.oracle import Oracle
from rlanything.domains.osworld.desktops.tasks import Verifier
from rlanything.domains.osworld.desktops.verify import share

COMMAND = {{"type": "vm_command_line", "command": "sleep 60", "shell": True}}
WAITS = {{"type": "execute", "parameters": {{"command": ["sleep", "60"]}}}}

async def main(phase):
    pool = make_pool(options(desktops=1, spares=1))
    if phase == "boot":
        print("now", flush=True)
    desktop = await pool.lease()
    guest = desktop.guest
    if phase.startswith("oracle"):
        oracle, given = Oracle(options()), (await desktop.address(), guest.screen)
        verifier = Verifier(instruction="x", evaluator={{"func": "exact_match", "result": COMMAND}})
        family = SimpleNamespace(id="f", config=[WAITS])
        set_up, evaluate = oracle.set_up(family, *given), oracle.evaluate(verifier, family, *given)
        asked = asyncio.create_task(set_up if phase == "oracle sets up" else evaluate)
        while (await guest.execute(["pgrep", "-x", "sleep"])).returncode:
            await asyncio.sleep(0.2)
        print("now", flush=True)
        await asked
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


STARTER = """
import os, sys, time
sys.path[:0] = {paths}
from desktop_world import local, options

made = [local(options())() for _ in range(4)]
print(*(os.fstat(desktop.process.stdout.fileno()).st_ino for desktop in made), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    "phase",
    [
        *("boot", "set up", "act", "settle", "evaluate"),
        *(pytest.param(phase, marks=needs_oracle) for phase in ("oracle sets up", "oracle evaluates")),
    ],
)
def test_killed_trainer_leaves_no_process_and_the_next_run_sweeps_its_folders(phase, monkeypatch):
    own = tempfile.TemporaryDirectory(prefix="k")  # other tests sweep the machine's; a socket's path must be short
    monkeypatch.setattr(tempfile, "tempdir", own.name)
    program = TRAINER.format(paths=[str(Path(__file__).parent), str(Path(__file__).parents[2])])
    trainer = subprocess.Popen(
        [sys.executable, "-c", program, phase], stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": own.name}
    )
    assert trainer.stdout.readline()
    time.sleep(0.3)
    below = psutil.Process(trainer.pid).children(recursive=True)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    _, alive = psutil.wait_procs(below, timeout=10)
    assert below and not alive
    assert sweep() >= 1
    assert not list(Path(tempfile.gettempdir()).glob(f"{PREFIX}{trainer.pid}-*"))


def using(pipe: int) -> list[int]:
    """Processes of the machine whose output goes to a pipe with this number."""
    found = []
    for output in Path("/proc").glob("[0-9]*/fd/1"):
        try:
            if os.readlink(output) == f"pipe:[{pipe}]":
                found.append(int(output.parts[2]))
        except OSError:
            continue
    return found


def ended(pipes: list[int]) -> bool:
    """True once no process uses the pipes any more."""
    until = time.monotonic() + 10
    while any(using(pipe) for pipe in pipes) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(using(pipe) for pipe in pipes)


def test_desktop_that_is_killed_while_it_starts_leaves_no_process():
    make, pipes = local(options()), []
    for i in range(16):
        desktop = make()
        pipes.append(os.fstat(desktop.process.stdout.fileno()).st_ino)
        time.sleep(0.004 * i)
        desktop.kill()
    assert len(set(pipes)) > 1 and ended(pipes)


def test_trainer_that_is_killed_while_desktops_start_leaves_no_process(monkeypatch):
    own = tempfile.TemporaryDirectory(prefix="k")
    monkeypatch.setattr(tempfile, "tempdir", own.name)
    program = STARTER.format(paths=[str(Path(__file__).parent), str(Path(__file__).parents[2])])
    for i in range(4):
        trainer = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": own.name}
        )
        pipes = [int(word) for word in trainer.stdout.readline().split()]
        time.sleep(0.01 * i)
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        assert len(pipes) == 4 and sweep() >= 1 and ended(pipes)


def test_sweep_removes_folders_whose_owner_is_dead_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in (f"{PREFIX}999999999-a", f"{PREFIX}{os.getpid()}-b", f"{PREFIX}x-c", "other"):
        (tmp_path / name / "inner").mkdir(parents=True)
    assert sweep() == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [f"{PREFIX}{os.getpid()}-b", f"{PREFIX}x-c", "other"]
    )
