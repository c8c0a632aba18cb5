"""A run tries tasks that nobody tried on its backend, keeps the verdicts, and leaves out what cannot be used."""

from __future__ import annotations

import json
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


def row(name, *, config=(WRITES,), **verifiers):
    return {"id": name, "application": "files", "config": list(config), "verifiers": verifiers}


ROWS = [
    row("fine", now=DELETED, other=PRESENT),
    row("solved", now=PRESENT),
    row("broken", config=[WRITES, FAILS], now=DELETED),
    row("never", now=NEVER),
]


def domain_of(folder, **changed) -> object:
    config = config_of("osworld", backend="local", **changed)
    config.dataset.path = str(folder)
    return make_domain(config)


@needs_desktops
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_what_nobody_tried_is_tried_before_it_is_played_and_only_once(tmp_path):
    folder = folder_of(tmp_path / "tasks", families=ROWS)
    domain = desktop_domain(tmp_path / "run", str(folder), desktops=2, spares=0, infeasible=1.0)
    said: list[str] = []
    tasks = admitted(domain, partial(evaluation_tasks, domain, "train", 0), said.append)
    assert sorted(task.id for task in tasks) == ["family/fine", "family/never"]
    assert not folders() and not isolated(), "the desktops of the tries are gone before models are loaded"
    verdicts = json.loads((folder / "admission_local.json").read_text())
    assert verdicts["family/fine/now"] == verdicts["family/never/now"] == ""
    assert verdicts["family/solved/now"] == "an untouched desktop scores 1"
    assert verdicts["family/broken/now"].startswith("set-up step 2 (execute)")
    assert "family/fine/other" not in verdicts, "no variant could ask for it"
    assert said[0].startswith("trying 4 verifiers") and any("family/solved/now is refused" in line for line in said)
    said.clear()
    again = desktop_domain(tmp_path / "run", str(folder), desktops=2, spares=0, infeasible=1.0)
    assert admitted(again, partial(evaluation_tasks, again, "train", 0), said.append) == tasks and not said
    adapts = desktop_domain(tmp_path / "run", str(folder), desktops=2, spares=0, infeasible=1.0)
    assert admitted(adapts, partial(training_tasks, adapts.config, adapts, said.append), said.append, variants=True)
    assert said[0].startswith("trying 1 verifiers"), "a variant could ask for it"
    assert adapts.world.refusal("family/fine", "other") == "pre_solved"
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
    known = {f"{some[2]}/now": "an untouched desktop scores 1"}
    domain = domain_of(folder_of(tmp_path / "some", families=rows, admission_local=known))
    assert [task.id for task in evaluation_tasks(domain, "train", 6)] == some[:2] + some[3:]
    domain.config.dataset.num_task = 12
    assert len(training_tasks(domain.config, domain, lambda line: None)) == 11


def test_a_split_of_which_nothing_can_be_played_names_a_reason_and_the_remedy(tmp_path):
    known = {"family/fine/now": "set-up step 1 (write): no disk"}
    domain = domain_of(folder_of(tmp_path, families=ROWS[:1], admission_local=known))
    for draw in (
        partial(evaluation_tasks, domain, "train", 0),
        partial(training_tasks, domain.config, domain, lambda line: None),
    ):
        with pytest.raises(TaskError, match=r"can play none of its 1 tasks.*family/fine: set-up step 1.*osworld_admis"):
            draw()


def test_refused_tasks_are_no_part_of_the_share_that_cannot_be_done(tmp_path):
    rows = [row(f"f{i}", now=NEVER if i % 2 else DELETED) for i in range(40)]
    known = {f"family/f{i}/now": "set-up step 1: no disk" for i in range(0, 20)}
    domain = domain_of(folder_of(tmp_path, families=rows, admission_local=known), infeasible=0.5)
    kinds = [domain.kind(task) for task in training_tasks(domain.config, domain, lambda line: None)]
    assert (kinds.count("files"), kinds.count("infeasible")) == (10, 10)


def test_verdicts_of_two_runs_are_kept_beside_each_other(tmp_path):
    path = tmp_path / "admission_local.json"
    first, second = Admission.read(path), Admission.read(path)
    first.keep("a/now", "")
    second.keep("b/now", "no disk")
    assert Admission.read(path).tried == {"a/now": "", "b/now": "no disk"}
    path.write_text('{"a/now": ')
    with pytest.raises(TaskError, match="admission_local.json.*remove it"):
        Admission.read(path)
    nowhere = Admission(path=tmp_path / "nowhere" / "x.json")
    with pytest.raises(TaskError, match="cannot be written"):
        nowhere.keep("a/now", "")


def test_generated_families_are_never_tried():
    domain = make_domain(config_of("osworld", backend="local", size=3))
    assert not domain.admit(domain.tasks("train"), True, pytest.fail)
