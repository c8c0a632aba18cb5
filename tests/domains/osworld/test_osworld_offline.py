"""OSWorld's own tasks, set-up and evaluators on local desktops; our checks beside its evaluators."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from desktop_world import (
    ORACLE,
    SHARED,
    desktop_domain,
    needs_desktops,
    needs_oracle,
    needs_tasks,
    options,
    with_desktop,
)
from osworld_solutions import SOLUTIONS

from rlanything.domains.osworld.actions import Action
from rlanything.domains.osworld.desktops.admission import try_all
from rlanything.domains.osworld.desktops.client import DesktopFault
from rlanything.domains.osworld.desktops.oracle import Oracle
from rlanything.domains.osworld.desktops.tasks import Verifier, read_family
from rlanything.domains.osworld.desktops.verify import KINDS, share
from rlanything.types import Score, Task

pytestmark = [pytest.mark.integration, needs_desktops, needs_oracle]
SCREEN = (1920, 1080)
SUCCESS, FAILURE = (Action(kind="terminate", status=status) for status in ("success", "failure"))


def offline() -> list[str]:
    """Ids of the tasks that need neither files nor the network."""
    path = SHARED / "offline-tasks.json"
    return [row["id"] for row in json.loads(path.read_text()) if row["runnable_offline"]] if path.is_file() else []


def task_of(domain, start: str) -> Task:
    """The task whose id begins so."""
    family = next(family for name, family in domain.world.families.items() if name.startswith(start))
    [name] = family.verifiers
    return Task(id=family.id, payload={"family": family.id, "verifier": name, "instruction": "x"})


def score_of(domain, task: Task, actions) -> Score:
    async def run():
        env = domain.make_env(task)
        try:
            seen = await env.reset()
            for action in actions:
                seen = await env.step(action.to_json())
            return await env.score(seen)
        finally:
            await env.close()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def domain(tmp_path_factory):
    with closing(desktop_domain(tmp_path_factory.mktemp("run"), str(SHARED), desktops=1, spares=1)) as made:
        yield made


@needs_tasks
def test_real_task_counts_when_it_is_done_and_only_then(domain):
    task = task_of(domain, "e0df059f")
    assert score_of(domain, task, [*SOLUTIONS["e0df059f"], SUCCESS]).success
    assert not score_of(domain, task, [SUCCESS]).success
    assert not score_of(domain, task, [*SOLUTIONS["e0df059f"], FAILURE]).success


@pytest.mark.slow
@pytest.mark.timeout(1800)
@needs_tasks
def test_every_offline_task_but_two_is_admitted(domain):
    """Its set-up succeeds, and the untouched desktop scores 0; for those that cannot be done, giving up scores 1.

    99146c54 scores 1 as soon as Chromium 156 has written its preferences. a462a795 wants a user that a desktop lacks.
    """
    world, whys = domain.world, dict[str, str]()
    tasks = [world.task_of(name, world.families[name].current) for name in offline()]
    envs = {task.id: partial(world.make_env, task) for task in tasks}
    asyncio.run(try_all(envs, world.capacity, whys.__setitem__))
    assert len(offline()) == len(whys) == 42
    found = {name[:8]: why for name, why in whys.items() if why}
    assert found.keys() == {"99146c54", "a462a795"} and found["99146c54"] == "an untouched desktop scores 1"
    assert "set-up step 1 (execute)" in found["a462a795"] and "user charles does not exist" in found["a462a795"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@needs_tasks
@pytest.mark.parametrize("start", SOLUTIONS)
def test_scripted_solution_scores_1_and_without_its_last_step_0(domain, start):
    task, done = task_of(domain, start), list(SOLUTIONS[start])
    assert score_of(domain, task, [*done, SUCCESS]).reward == 1.0
    while done[-1].kind == "wait":
        done.pop()
    assert score_of(domain, task, [*done[:-1], SUCCESS]).reward == 0.0


STATES = (
    "true",
    "echo milk > ~/a.txt",
    "printf 'milk\\nbread\\n' > ~/a.txt",
    "mkdir ~/b",
    "gsettings set org.gnome.desktop.interface clock-format 12h",
    "chmod 600 ~/.config/user-dirs.dirs",
    """printf '{"view": {"zoom": 2}}' > ~/c.json""",
    """printf '{"view": {"zoom": 3}}' > ~/c.json""",
    "printf '{' > ~/c.json",
    "printf 'name,price\nmilk,5\n' > ~/t.csv; cd ~; soffice --headless --convert-to xlsx t.csv",
    "printf 'name,price\nmilk,6\n' > ~/t.csv; cd ~; soffice --headless --convert-to xlsx t.csv",
)
CLOCK = ["gsettings", "get", "org.gnome.desktop.interface", "clock-format"]
COMMANDS = (  # (our check, a command, what it shows if that holds)
    (
        {"kind": "exists", "path": "~/b"},
        "[ -d ~/b ] && echo yes || echo no",
        "yes\n",
    ),
    (
        {"kind": "file_text", "path": "~/a.txt", "text": "milk"},
        "[ \"$(cat ~/a.txt 2>/dev/null)\" = milk ] && echo yes || echo no",
        "yes\n",
    ),
    (
        {"kind": "file_contains", "path": "~/a.txt", "text": "bread"},
        "grep -q bread ~/a.txt && echo yes || echo no",
        "yes\n",
    ),
    (
        {"kind": "command", "command": CLOCK, "output": "'12h'"},
        CLOCK,
        "'12h'\n",
    ),
    (
        {"kind": "command", "command": "stat -c %a ~/.config/user-dirs.dirs", "output": "600"},
        "stat -c %a ~/.config/user-dirs.dirs",
        "600\n",
    ),
)  # fmt: skip
ROWS = {"type": "check_cell", "sheet_idx": 0, "coordinate": "B2", "props": {"value": {"method": "eq", "ref": 5}}}
PAIRS = (  # (our check, OSWorld's evaluator that means the same)
    *(
        (
            check,
            {
                "func": "exact_match",
                "result": {"type": "vm_command_line", "command": command, "shell": isinstance(command, str)},
                "expected": {"type": "rule", "rules": {"expected": shown}},
            },
        )
        for check, command, shown in COMMANDS
    ),
    (
        {"kind": "file_contains", "path": "~/a.txt", "text": "bread"},
        {
            "func": "check_include_exclude",
            "result": {"type": "vm_command_line", "command": "cat ~/a.txt; true", "shell": True},
            "expected": {"type": "rule", "rules": {"include": ["bread"]}},
        },
    ),
    (
        {"kind": "json", "path": "~/c.json", "key": "view.zoom", "value": 2},
        {
            "func": "check_json",
            "result": {"type": "vm_file", "path": "/home/user/c.json", "dest": "c.json"},
            "expected": {"type": "rule", "rules": {"expect": [{"key": ["view", "zoom"], "method": "eq", "ref": 2}]}},
        },
    ),
    (
        {"kind": "cell", "path": "~/t.xlsx", "cell": "B2", "value": 5},
        {
            "func": "compare_table",
            "result": {"type": "vm_file", "path": "/home/user/t.xlsx", "dest": "t.xlsx"},
            "options": {"rules": [ROWS]},
        },
    ),
)


def test_our_checks_agree_with_osworlds_evaluators_on_the_same_states():
    family = read_family({"id": "f", "instruction": "x", "evaluator": {"func": "exact_match"}}, "x")

    async def use(desktop):
        oracle, seen = Oracle(options()), []
        try:
            for state in STATES:
                await desktop.guest.execute(state, shell=True)
                for check, evaluator in PAIRS:
                    ours = await share(desktop.guest, [check])
                    verifier = Verifier(instruction="x", evaluator=evaluator)
                    theirs = await oracle.evaluate(verifier, family, await desktop.address(), SCREEN)
                    seen.append((state, check["kind"], ours, theirs))
        finally:
            oracle.close()
        return seen

    seen = with_desktop(use)
    assert not [found for found in seen if found[2] != found[3]]
    for kind in KINDS:
        assert {ours for _, own, ours, _ in seen if own == kind} == {0.0, 1.0}, kind


def test_fault_of_an_evaluator_or_a_set_up_step_is_named_and_no_score():
    missing = "https://example.invalid/gold.xlsx"
    cases = {
        "no_such_metric": {"func": "no_such_metric", "result": {"type": "vm_command_line", "command": ["true"]}},
        "did not end in|took too long": {
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": "sleep 30", "shell": True},
            "expected": {"type": "rule", "rules": {"expected": ""}},
        },
        f"{missing} is needed; fetch it once, curl -Lo": {
            "func": "exact_match",
            "result": {"type": "cloud_file", "path": missing, "dest": "gold.xlsx"},
            "expected": {"type": "rule", "rules": {"expected": ""}},
        },
    }
    steps = {
        "ended with 3": {"type": "execute", "parameters": {"command": "exit 3", "shell": True}},
        "gold.xlsx": {"type": "download", "parameters": {"files": [{"url": missing, "path": "/home/user/g.xlsx"}]}},
        "answered 404": {"type": "open", "parameters": {"path": "/home/user/nothing.xlsx"}},
    }

    family = SimpleNamespace(id="f")

    async def use(desktop):
        oracle = Oracle(options(evaluate_s=3.0))
        address, told = await desktop.address(), []
        try:
            for evaluator in cases.values():
                with pytest.raises(DesktopFault) as fault:
                    await oracle.evaluate(Verifier(instruction="x", evaluator=evaluator), family, address, SCREEN)
                told.append(str(fault.value))
            for step in steps.values():
                with pytest.raises(DesktopFault) as fault:
                    await oracle.set_up(SimpleNamespace(config=[step]), address, SCREEN)
                told.append(str(fault.value))
        finally:
            oracle.close()
        return told

    told = with_desktop(use)
    for text, (wanted, found) in zip(told, [*cases.items(), *steps.items()], strict=True):
        assert any(part in text for part in wanted.split("|")), (wanted, text, found)
    assert not list(Path("/tmp").glob("rlanything-oracle-*"))
    assert Path(ORACLE).exists()


FAVORITES = {
    "func": "check_gnome_favorite_apps",
    "result": {"type": "vm_command_line", "command": ["sh", "-c", "sleep 3; echo \"['vim.desktop']\""]},
    "expected": {"type": "rule", "rules": {"expected": ["vim.desktop"]}},
}


def test_no_file_of_a_desktop_is_executed_beside_the_scores():
    file = {"type": "vm_file", "path": "/home/user/t.py", "dest": "t.py"}
    hostile = {"func": "check_python_file_by_test_suite", "result": file, "expected": file}

    async def use(desktop):
        await desktop.guest.upload("~/t.py", b"def test(): return True")
        oracle = Oracle(options())
        try:
            verifier = Verifier(instruction="x", evaluator=hostile)
            await oracle.evaluate(verifier, SimpleNamespace(id="f"), await desktop.address(), SCREEN)
        finally:
            oracle.close()

    with pytest.raises(DesktopFault, match="executes a file that the agent wrote, and is left out"):
        with_desktop(use)


def test_the_oracle_serves_one_event_loop_after_the_other_and_survives_a_cancelled_call():
    """It belongs to no thread that ends with a loop; a call may be cancelled before its process has begun."""
    oracle, slow = Oracle(options()), {**FAVORITES, "func": "exact_match"}

    async def use(desktop):
        family, address = SimpleNamespace(id="f"), await desktop.address()

        async def asked(evaluator):
            return await oracle.evaluate(Verifier(instruction="x", evaluator=evaluator), family, address, SCREEN)

        first = await asked(FAVORITES)
        for _ in range(20):
            cancelled = asyncio.create_task(asked(slow))
            await asyncio.sleep(0)
            while not oracle._waiting:
                await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.gather(cancelled, return_exceptions=True)
        return first, await asked(FAVORITES), oracle._process.pid

    try:
        found = [with_desktop(use) for _ in range(2)]
    finally:
        oracle.close()
    assert found[0] == found[1] and found[0][:2] == (1.0, 1.0)


def test_a_setting_that_is_no_list_is_not_executed():
    bad = {**FAVORITES, "result": {"type": "vm_command_line", "command": ["echo", "__import__('os').getpid()"]}}

    async def use(desktop):
        oracle = Oracle(options())
        try:
            verifier = Verifier(instruction="x", evaluator=bad)
            await oracle.evaluate(verifier, SimpleNamespace(id="f"), await desktop.address(), SCREEN)
        finally:
            oracle.close()

    with pytest.raises(DesktopFault, match="malformed node"):
        with_desktop(use)


def test_oracle_that_is_closed_ends_the_processes_of_its_requests():
    evaluator = {"func": "exact_match", "result": {"type": "vm_command_line", "command": "sleep 60", "shell": True}}

    async def use(desktop):
        oracle = Oracle(options())
        verifier, address = Verifier(instruction="x", evaluator=evaluator), await desktop.address()
        asked = asyncio.create_task(oracle.evaluate(verifier, SimpleNamespace(id="f"), address, SCREEN))
        await asyncio.sleep(8)
        below = psutil.Process(oracle._process.pid).children(recursive=True)
        oracle.close()
        with pytest.raises(DesktopFault):
            await asked
        return psutil.wait_procs(below, timeout=5)

    gone, alive = with_desktop(use)
    assert len(gone) >= 2 and not alive


@pytest.mark.parametrize(
    ("conj", "scores", "wanted"),
    [
        ("and", ("no", "boom"), 0.0),  # what is not needed is not looked at
        ("or", ("yes", "boom"), 1.0),
        ("and", ("yes", "absent"), 0.0),
        ("or", ("no", "absent"), 0.0),  # OSWorld takes the score before it, and fails if there is none
        ("or", ("absent", "yes"), 1.0),
        ("and", ("yes", "yes"), 1.0),
    ],
)
def test_scores_are_combined_as_osworld_does(conj, scores, wanted):
    def result(word):
        if word == "boom":
            return {"type": "no_such_getter"}
        if word == "absent":
            return {"type": "vm_file", "path": "/home/user/absent.txt", "dest": "absent.txt"}
        return {"type": "vm_command_line", "command": ["echo", word]}

    rule = {"type": "rule", "rules": {"expected": "yes\n"}}
    evaluator = {
        "func": ["exact_match", "exact_match"], "conj": conj, "result": [result(word) for word in scores],
        "expected": [rule, rule],
    }  # fmt: skip

    async def use(desktop):
        oracle = Oracle(options())
        try:
            verifier = Verifier(instruction="x", evaluator=evaluator)
            return await oracle.evaluate(verifier, SimpleNamespace(id="f"), await desktop.address(), SCREEN)
        finally:
            oracle.close()

    assert with_desktop(use) == wanted
