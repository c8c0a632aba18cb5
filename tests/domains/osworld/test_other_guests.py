"""Guests that somebody else runs, and containers: against a small server of OSWorld's kind, with faults to order."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders import config_of
from desktop_world import FAKE, ORACLE, endpoint_options, needs_oracle, play

from rlanything.domains.osworld.actions import Action
from rlanything.domains.osworld.desktops import backends, client
from rlanything.domains.osworld.desktops.backends import check_backend, make_pool
from rlanything.domains.osworld.desktops.client import DesktopFault, Guest
from rlanything.domains.osworld.desktops.endpoint import read_address
from rlanything.domains.osworld.desktops.oracle import Oracle
from rlanything.domains.osworld.desktops.tasks import Verifier
from rlanything.domains.osworld.desktops.verify import share
from rlanything.domains.osworld.options import OsworldOptions
from rlanything.domains.osworld.world import payload
from rlanything.domains.registry import make_domain
from rlanything.errors import RunError, TaskError
from rlanything.evaluation.script import play_scripts
from rlanything.runs.progress import Progress
from rlanything.types import Task


def used(port: int, use):
    """What `use` returns for a connected guest."""

    async def run():
        guest = Guest(f"http://127.0.0.1:{port}")
        try:
            await guest.connect()
            return await use(guest)
        finally:
            await guest.close()

    return asyncio.run(run())


def test_stock_guest_gets_each_action_as_a_command(guests):
    process, port = guests()

    async def act(guest):
        await guest.perform(Action(kind="left_click", coordinate=(500, 500)))
        await guest.perform(Action(kind="type", text="déjà vu < 中"))
        await guest.perform(Action(kind="scroll", pixels=-100, coordinate=(0, 999)))
        return guest.screen

    assert used(port, act) == (640, 480)
    process.kill()
    click, typed, scroll = [json.loads(line) for line in process.stdout]
    assert click[:2] == ["python", "-c"] and click[2].endswith("pyautogui.moveTo(320, 240); pyautogui.click()")
    assert typed[0] == "python" and typed[3] == "déjà vu < 中"
    assert scroll[2].endswith("pyautogui.moveTo(0, 479); pyautogui.scroll(-10)")


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("error", "answered 500: no screen"),
        ("hang", "ReadTimeout"),
        ("no picture", "no picture"),
        ("die", "screenshot"),
    ],
)
def test_guest_that_fails_in_an_episode_is_a_fault_of_the_infrastructure(guests, monkeypatch, fault, told):
    monkeypatch.setattr(client, "ANSWER_S", 1.0)
    _, port = guests(fault)

    async def look(guest):
        for _ in range(4):
            await guest.screenshot(0.2)

    with pytest.raises(DesktopFault, match=told):
        used(port, look)


def test_screen_that_never_stands_still_is_waited_for_no_longer_than_asked(guests):
    async def look(guest):
        await guest.screenshot(1.5)
        return guest.settled_s

    assert 1.5 <= used(guests("restless")[1], look) < 5 and used(guests()[1], look) < 1.5


def test_share_of_the_checks_that_hold_is_the_reward_and_only_all_of_them_are_success(guests, tmp_path):
    def told(word):
        return {"kind": "command", "command": ["echo", word], "output": "yes"}

    kinds = {"none": ("no", "no"), "half": ("yes", "no"), "all": ("yes", "yes")}
    verifiers = {
        name: {"instruction": name, "evaluator": {"checks": [told(word) for word in words]}}
        for name, words in kinds.items()
    }
    (tmp_path / "families.jsonl").write_text(json.dumps({"id": "f", "verifiers": verifiers}))
    config = config_of("osworld", **endpoint_options(guests()[1]).model_dump())
    config.experiment.output_dir, config.dataset.path = str(tmp_path), str(tmp_path)
    with closing(make_domain(config)) as domain:
        ending = [Action(kind="terminate", status="success")]
        scores = {
            name: play(domain, Task(id="f", payload=payload("family/f", name, "x")), ending)[1] for name in verifiers
        }
    assert {name: (score.success, score.reward) for name, score in scores.items()} == {
        "none": (False, 0.0),
        "half": (False, 0.5),
        "all": (True, 1.0),
    }


def test_scripted_solution_that_fails_ends_the_look_at_a_backend_with_its_name(guests, tmp_path, capsys):
    right, wrong = (
        {"instruction": "x", "evaluator": evaluator, "solution": [{"action": "terminate", "status": status}]}
        for evaluator, status in (
            ({"func": "infeasible"}, "failure"),
            ({"checks": [{"kind": "command", "command": ["echo", "yes"], "output": "no"}]}, "success"),
        )
    )
    rows = [{"id": name, "verifiers": {"a": verifier}} for name, verifier in (("right", right), ("wrong", wrong))]
    (tmp_path / "families.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = config_of("osworld", **endpoint_options(guests()[1], infeasible=0.5).model_dump())
    config.experiment.output_dir = config.dataset.path = str(tmp_path)
    config.evaluation.splits, config.rollout.env_timeout_s = ["train"], 300.0
    with pytest.raises(RunError, match="1 of 2 scripted solutions failed.*\n  family/wrong: not solved at the end"):
        play_scripts(config, Progress())
    said = capsys.readouterr().out
    assert "100.0%" in said and " 0.0%" in said and "2 of 2 tried" in said


@needs_oracle
@pytest.mark.parametrize("checks", [True, False], ids=["our checks", "OSWorld's evaluator"])
def test_file_that_an_agent_locked_fails_the_task_and_a_guest_that_cannot_read_one_is_a_fault(guests, checks):
    ours = {"checks": [{"kind": "file_text", "path": "/a", "text": "x"}]}
    theirs = {
        "func": "compare_text_file",
        "result": {"type": "vm_file", "path": "/a", "dest": "a"},
        "expected": {"type": "vm_file", "path": "/b", "dest": "b"},
    }
    verifier = Verifier(instruction="x", evaluator=ours if checks else theirs)

    async def score(port):
        oracle = Oracle(OsworldOptions(oracle=ORACLE))
        guest = Guest(f"http://127.0.0.1:{port}")
        try:
            if checks:
                return await share(guest, verifier.checks)
            address = read_address(f"127.0.0.1:{port}")
            return await oracle.evaluate(verifier, SimpleNamespace(id="f"), address, (640, 480))
        finally:
            await guest.close()
            oracle.close()

    assert asyncio.run(score(guests("locked file")[1])) == 0.0
    with pytest.raises(DesktopFault, match="/file answered 500: disk is gone"):
        asyncio.run(score(guests("broken file")[1]))
    process, port = guests()
    process.kill()
    process.wait()
    with pytest.raises(DesktopFault, match="/file: "):
        asyncio.run(score(port))


DOCKER = """#!{python}
import json, os, pathlib, subprocess, sys
state = pathlib.Path({state!r})
words = sys.argv[1:]
with open(state / "calls", "a") as calls:
    calls.write(json.dumps(words) + chr(10))
if words[0] == "run":
    guest = subprocess.Popen([{python!r}, {fake!r}, "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                             start_new_session=True)
    port = guest.stdout.readline().split()[1]
    name, owner = words[words.index("--name") + 1], words[words.index("--label") + 1].partition("=")[2]
    (state / name).write_text(f"{{guest.pid}} {{port}} {{owner}}")
elif words[0] == "image":
    sys.exit(0 if (state.parent / "pulled").exists() else "No such image: " + words[2])
elif words[0] == "pull":
    if words[2] == "nowhere":
        sys.exit("pull access denied")
    (state.parent / "pulled").touch()
elif words[0] == "ps":
    for path in state.iterdir():
        if path.name != "calls":
            print(path.name, path.read_text().split()[2])
elif words[0] == "port":
    print("127.0.0.1:" + (state / words[1]).read_text().split()[1])
elif words[0] == "rm":
    os.kill(int((state / words[2]).read_text().split()[0]), 9)
    (state / words[2]).unlink()
"""


@pytest.fixture
def docker(tmp_path, monkeypatch) -> Path:
    """A docker command that starts a guest for each container; its folder holds a file for each, and the calls."""
    state, bin_folder = tmp_path / "state", tmp_path / "bin"
    state.mkdir()
    bin_folder.mkdir()
    script = bin_folder / "docker"
    script.write_text(DOCKER.format(python=sys.executable, state=str(state), fake=str(FAKE)))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    return state


@pytest.mark.parametrize("closed", ["by its task", "by the pool"])
def test_docker_desktop_that_is_closed_while_its_container_is_made_leaves_none(docker, closed):
    options = OsworldOptions(backend="docker", docker_disk="/disk.qcow2", desktops=1, reset_s=10.0)

    async def run():
        pool = make_pool(options)
        leased = asyncio.create_task(pool.lease())
        while not (docker / "calls").exists() or '"run"' not in (docker / "calls").read_text():
            await asyncio.sleep(0.001)
        await asyncio.to_thread(pool.close) if closed == "by the pool" else leased.cancel()
        with pytest.raises((DesktopFault, asyncio.CancelledError)):
            await leased

    asyncio.run(run())
    assert [path.name for path in docker.iterdir()] == ["calls"]


def test_docker_runs_a_container_for_each_episode_and_removes_only_its_own(tmp_path, docker):
    state, disk = docker, tmp_path / "Ubuntu.qcow2"
    disk.write_bytes(b"disk")
    (state / "stranger").write_text("1 1 elsewhere:1")
    (state / "other").write_text(f"1 1 {socket.gethostname()}:{os.getpid()}")
    guest = subprocess.Popen(["sleep", "100"])
    (state / "orphan").write_text(f"{guest.pid} 1 {socket.gethostname()}:999999999")
    options = OsworldOptions(backend="docker", docker_disk=str(disk), desktops=1, reset_s=10.0)
    with pytest.raises(TaskError, match="docker_image=nowhere: docker pull ended with 1: pull access denied"):
        check_backend(options.model_copy(update={"docker_image": "nowhere"}))
    (state / "calls").unlink()
    for _ in range(2):
        check_backend(options)
    calls = [json.loads(line) for line in (state / "calls").read_text().splitlines()]
    assert [call for call in calls if call[0] == "pull"] == [["pull", "--quiet", options.docker_image]]

    async def run():
        pool = make_pool(options)
        for _ in range(2):
            desktop = await pool.lease()
            assert desktop.guest.screen == (640, 480)
            await pool.release(desktop)
        await pool.lease()
        pool.close()  # a run that is cut off

    asyncio.run(run())
    calls = [json.loads(line) for line in (state / "calls").read_text().splitlines()]
    runs = [call for call in calls if call[0] == "run"]
    assert (
        len(runs) == 3
        and f"{disk}:/System.qcow2:ro" in runs[0]
        and f"rlanything.owner={socket.gethostname()}:{os.getpid()}" in runs[0]
    )
    assert all(f"127.0.0.1::{port}" in runs[0] for port in (5000, 9222, 8080))
    assert guest.wait(5) == -9  # the container of a trainer that is dead
    assert sorted(path.name for path in state.iterdir()) == ["calls", "other", "stranger"]


def test_missing_parts_of_a_backend_are_named_before_a_run(tmp_path, monkeypatch):
    cases = [
        (OsworldOptions(backend="endpoint"), "endpoints is empty"),
        (OsworldOptions(backend="endpoint", endpoints=["a:5000"]), "reset_command is empty"),
        (OsworldOptions(backend="docker", docker_disk="/nowhere.qcow2"), "docker"),
        (OsworldOptions(backend="local", home=str(tmp_path)), "osworld_desktop.sh"),
    ]
    for options, told in cases:
        with pytest.raises(TaskError, match=told):
            check_backend(options)
    monkeypatch.setattr(backends, "ASKED", ("sh", "-c", "echo bubblewrap installed; echo gimp config-files"))
    with pytest.raises(TaskError, match="apt-get install adwaita-icon-theme .* chromium .* gimp"):
        check_backend(OsworldOptions(backend="local"))
    monkeypatch.setattr(backends, "missing_packages", list)
    for name in ("site", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(backends, "PROBE", ("sh", "-c", "echo no namespaces >&2; exit 1"))
    with pytest.raises(TaskError, match="cannot isolate desktops.*no namespaces.*user namespaces must be allowed"):
        check_backend(OsworldOptions(backend="local", home=str(tmp_path)))
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TaskError, match="no dpkg-query; use the backend docker or endpoint"):
        check_backend(OsworldOptions(backend="local"))


def test_unknown_backend_and_bad_screen_are_refused():
    for wrong in (
        {"backend": "aws"},
        {"backend": "local", "screen": [1920]},
        {"backend": "local", "screen": [0, 1080]},
    ):
        with pytest.raises(Exception, match="dataset.options"):
            make_domain(config_of("osworld", **wrong))
