"""A run tries tasks that nobody tried on its backend, keeps the verdicts, and leaves out what cannot be used."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from builders import config_of
from desktop_world import desktop_domain, folders, isolated, needs_desktops
from osworld_rows import checked, folder_of

from rlanything.config.schema import Config
from rlanything.domains.base import admitted
from rlanything.domains.osworld.desktops.admission import Admission
from rlanything.domains.registry import make_domain
from rlanything.errors import TaskError
from rlanything.evaluation.play import evaluation_tasks
from rlanything.evaluation.script import play_scripts
from rlanything.plan.tasks import training_tasks
from rlanything.runs.progress import Progress

WRITES = {"type": "write", "parameters": {"path": "~/a", "text": "x"}}
DELETED = checked(kind="exists", path="~/a") | {
    "evaluator": {"checks": [{"kind": "exists", "path": "~/a", "not": True}]},
    "solution": [
        {"action": "key", "keys": ["ctrl", "alt", "t"]},
        {"action": "wait", "time": 2},
        {"action": "type", "text": "rm ~/a\n"},
        {"action": "terminate", "status": "success"},
    ],
}
PRESENT = checked(kind="exists", path="~/a")
NEVER = {"instruction": "Never.", "evaluator": {"func": "infeasible"}}
FAILS = {"type": "execute", "parameters": {"command": ["false"]}}
KILLS = {"type": "execute", "parameters": {"command": ["sh", "-c", "(sleep 2; kill -9 -1) > /dev/null 2>&1 &"]}}


def row(name, *, config=(WRITES,), **verifiers):
    return {"id": name, "application": "files", "config": list(config), "verifiers": verifiers}


ROWS = [
    row("fine", now=DELETED, other=PRESENT),
    row("solved", now=PRESENT),
    row("broken", config=[WRITES, FAILS], now=DELETED),
    row("never", now=NEVER),
    row("killed", config=[WRITES, KILLS], now=DELETED),
]


def domain_of(folder, **changed):
    config = config_of("osworld", backend="local", **changed)
    config.dataset.path = str(folder)
    return make_domain(config)


def refusing(folder, *names: str, **changed):
    """The domain, in whose folder a verdict tells that an untouched desktop solves the current verifiers of these."""
    world = domain_of(folder, **changed).world
    verdicts = {world.verdict_name(name, "now"): "an untouched desktop scores 1" for name in names}
    folder_of(folder, admission_local=verdicts)
    return domain_of(folder, **changed)


@needs_desktops
@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_what_nobody_tried_is_tried_before_it_is_played_and_only_once(tmp_path):
    folder = folder_of(tmp_path / "tasks", families=ROWS)
    domain = desktop_domain(tmp_path / "run", str(folder), desktops=2, spares=0, infeasible=1.0)
    said: list[str] = []
    tasks = admitted(domain, partial(evaluation_tasks, domain, "train", 0), said.append)
    assert sorted(task.id for task in tasks) == ["family/fine", "family/never"]
    assert not folders() and not isolated(), "the desktops of the tries are gone before models are loaded"
    kept = json.loads((folder / "admission_local.json").read_text())
    assert {name.split()[0]: why for name, why in kept.items()} == {
        "family/fine/now": "",  # but not "other": no variant could ask for it
        "family/solved/now": "an untouched desktop scores 1",
        "family/never/now": "",
    }
    assert domain.refusal(domain.world.task_of("family/broken", "now")).startswith("set-up step 2 (execute)")
    assert "ended" in domain.refusal(domain.world.task_of("family/killed", "now")), "its score of 0 says nothing"
    assert said[0].startswith("trying 5 verifiers") and any("left out: family/solved/now" in line for line in said)
    said.clear()
    again = desktop_domain(tmp_path / "run", str(folder), desktops=2, spares=0, infeasible=1.0)
    assert admitted(again, partial(evaluation_tasks, again, "train", 0), said.append) == tasks
    assert said[0].startswith("trying 2 verifiers"), "what broke may have been mended"
    said.clear()
    assert admitted(again, partial(evaluation_tasks, again, "train", 0), said.append) == tasks and not said
    adapts = desktop_domain(tmp_path / "run", str(folder), desktops=2, spares=0, infeasible=1.0)
    assert admitted(adapts, partial(training_tasks, adapts.config, adapts, said.append), said.append, variants=True)
    assert said[0].startswith("trying 3 verifiers"), "a variant could ask for the other one"
    assert adapts.world.variant_refusal("family/fine", "other") == "pre_solved"
    for each in (domain, again, adapts):
        each.close()


@needs_desktops
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_scripts_of_a_split_are_played_where_it_is_admitted_alone(tmp_path, capsys):
    folder = folder_of(tmp_path / "tasks", families=ROWS)
    config = Config.model_validate(desktop_domain(tmp_path / "run", str(folder), desktops=2, spares=0).config)
    config.evaluation.splits, config.rollout.env_timeout_s = ["train"], 300.0
    play_scripts(config, Progress())
    assert "train: 1 scripted solutions" in capsys.readouterr().out, "it is solved, and the others are left out"


def test_desktops_that_cannot_be_had_refuse_no_task(tmp_path):
    folder = folder_of(tmp_path / "tasks", families=ROWS)
    config = config_of("osworld", backend="endpoint", endpoints=["127.0.0.1:9:9:9"], reset_command=["false"], reset_s=1)
    config.dataset.path = str(folder)
    domain = make_domain(config)
    with pytest.raises(TaskError, match=r"no desktop can be had to try family/.*reset_command ended with 1"):
        admitted(domain, partial(evaluation_tasks, domain, "train", 0), lambda line: None)
    assert not (folder / "admission_endpoint.json").exists()


def test_what_is_refused_changes_nothing_of_which_other_tasks_are_drawn(tmp_path):
    rows = [row(f"f{i}", now=DELETED) for i in range(12)]
    domain = domain_of(folder_of(tmp_path / "all", families=rows))
    some = [task.id for task in evaluation_tasks(domain, "train", 6)]
    domain = refusing(folder_of(tmp_path / "some", families=rows), some[2])
    assert [task.id for task in evaluation_tasks(domain, "train", 6)] == some[:2] + some[3:]
    domain.config.dataset.num_task = 12
    assert len(training_tasks(domain.config, domain, lambda line: None)) == 11


def test_a_split_of_which_nothing_can_be_played_names_a_reason_and_the_remedy(tmp_path):
    domain = refusing(folder_of(tmp_path, families=ROWS[:1]), "family/fine")
    for draw in (
        partial(evaluation_tasks, domain, "train", 0),
        partial(training_tasks, domain.config, domain, lambda line: None),
    ):
        with pytest.raises(TaskError, match=r"can play none of the 1 tasks.*family/fine: an untouched.*osworld_admis"):
            draw()


def test_refused_tasks_are_no_part_of_the_share_that_cannot_be_done(tmp_path):
    rows = [row(f"f{i}", now=NEVER if i % 2 else DELETED) for i in range(40)]
    solved = [f"family/f{i}" for i in range(20)]
    domain = refusing(folder_of(tmp_path, families=rows), *solved, infeasible=0.5)
    kinds = [domain.kind(task) for task in training_tasks(domain.config, domain, lambda line: None)]
    assert (kinds.count("files"), kinds.count("infeasible")) == (10, 10)


def test_runs_that_begin_together_try_nothing_twice_and_keep_each_others_verdicts(tmp_path):
    path, said, waiting = tmp_path / "admission_local.json", list[str](), threading.Event()

    def told(line: str) -> None:
        said.append(line)
        waiting.set()

    def later() -> dict[str, str]:
        second = Admission.read(path)
        with second.locked(told):
            second.keep("b", "an untouched desktop scores 0.5")
        return second.verdicts

    first = Admission.read(path)
    with ThreadPoolExecutor() as pool:
        with first.locked(pytest.fail):
            found = pool.submit(later)
            assert waiting.wait(10) and "another run" in said[0]
            first.keep("a", "")
        assert found.result(10) == {"a": "", "b": "an untouched desktop scores 0.5"}
    assert Admission.read(path).verdicts == found.result()
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_task_that_was_changed_is_tried_anew(tmp_path):
    domain = refusing(folder_of(tmp_path, families=ROWS[:1]), "family/fine")
    assert domain.refusal(domain.tasks("train")[0])
    config = [*ROWS[0]["config"], {"type": "sleep", "parameters": {"seconds": 1}}]
    for changed in (row("fine", now=PRESENT), row("fine", config=config, now=DELETED)):
        domain = domain_of(folder_of(tmp_path, families=[changed]))
        [task] = domain.tasks("train")
        assert not domain.refusal(task) and not domain.world.admission.is_known(
            domain.world.verdict_name(task.id, "now")
        )


def test_the_last_try_counts_whatever_an_earlier_one_found(tmp_path):
    admission = Admission(path=tmp_path / "admission_local.json")
    for why in ("", "set-up step 1: no disk", "an untouched desktop scores 1", ""):
        admission.keep("a", why)
        assert admission.why("a") == why and admission.is_known("a")
        assert Admission.read(admission.path).verdicts == ({} if "disk" in why else {"a": why})
    assert not admission.faults


@pytest.mark.parametrize("text", ['{"a": ', "[]", "null", '{"a": 1}'])
def test_a_file_that_holds_no_verdicts_is_named_with_the_remedy(tmp_path, text):
    path = tmp_path / "admission_local.json"
    path.write_text(text)
    with pytest.raises(TaskError, match="admission_local.json.*remove it"):
        Admission.read(path)


def test_a_folder_that_cannot_be_written_is_told_before_a_desktop_starts(tmp_path):
    admission = Admission(path=tmp_path / "nowhere" / "x.json")
    with pytest.raises(TaskError, match="its folder cannot be written"), admission.locked(pytest.fail):
        pytest.fail("nothing can be kept")


def test_verdicts_and_locks_are_no_data_of_a_warm_start(tmp_path):
    domain = refusing(folder_of(tmp_path, families=ROWS[:1]), "family/fine")
    with domain.world.admission.locked(pytest.fail):
        assert [path.name for path in domain.data_files("train")] == ["families.jsonl"]


def test_generated_families_are_never_tried():
    domain = make_domain(config_of("osworld", backend="local", size=3))
    assert not domain.admit(domain.tasks("train"), True, pytest.fail)
