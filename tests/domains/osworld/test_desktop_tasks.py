"""Files of tasks for real desktops: every form that is read, and what is wrong with one that is not."""

from __future__ import annotations

import json
import sys

import pytest
from builders import config_of
from desktop_world import SHARED, needs_tasks
from osworld_rows import OWN, PUBLISHED, TASK, checked, folder_of

from rlanything.domains.osworld.actions import NEEDS, Action
from rlanything.domains.osworld.desktops.execution import requests
from rlanything.domains.osworld.desktops.generator import generated
from rlanything.domains.osworld.desktops.tasks import read_family, read_splits
from rlanything.domains.parts import RejectedTask
from rlanything.domains.registry import make_domain
from rlanything.errors import ConfigError, TaskError
from rlanything.types import Direction


def test_each_form_of_a_family_is_read():
    own, task, published = (read_family(row, "x") for row in (OWN, TASK, PUBLISHED))
    assert own.current == "short" and not own.verifiers["long"].feasible and not own.needs_oracle
    assert [action.kind for action in own.verifiers["short"].solution] == ["type", "terminate"]
    assert task.verifiers["evaluator1"].instruction == "Do it." and task.needs_oracle
    assert published.current == "evaluator2" and published.verifiers["evaluator2"].instruction == "Do even more."


def wrong(**changed):
    return {**OWN, **changed}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ([], "id is missing"),
        ({}, "id is missing"),
        ({**TASK, "instruction": ""}, "instruction is missing"),
        ({**TASK, "evaluator": None}, "evaluator is missing"),
        ({**TASK, "config": [{"type": "format_disk", "parameters": {}}]}, "step 1: found type 'format_disk'"),
        ({**TASK, "config": ["launch"]}, "step 1: expected"),
        (wrong(config=[{"type": "write", "parameters": {}}]), r"step 1 \(write\): the parameter path is missing"),
        (wrong(current="other"), "current names other"),
        (wrong(verifiers={"a": {"instruction": "x"}}), "verifier a: evaluator needs"),
        (wrong(verifiers={"a": {"evaluator": {"checks": []}}}), "verifier a: instruction is missing"),
        (wrong(verifiers={"a": {"instruction": "x", "evaluator": {"checks": []}}}), "checks is empty"),
        (wrong(verifiers={"a": {"instruction": "x", "evaluator": {"checks": [{"kind": "smell"}]}}}), "check 1: kind"),
        (
            wrong(verifiers={"a": {"instruction": "x", "evaluator": {"checks": [{"kind": "cell", "path": "a"}]}}}),
            r"check 1 \(cell\): cell is missing",
        ),
        (
            wrong(verifiers={"a": checked(kind="file_text", path="~/a", text=5)}),
            r"check 1 \(file_text\): text: found 5",
        ),
        (wrong(verifiers={"a": checked(kind="command", command=5, output="")}), "command: found 5"),
        (wrong(verifiers={"a": checked(kind="json", path="a", key="b", value={})}), "value: found {}"),
        (
            wrong(verifiers={"a": {**OWN["verifiers"]["short"], "solution": [{"action": "fly"}]}}),
            "solution: action: found 'fly'",
        ),
        (wrong(config=5), "config: found 5"),
        (wrong(config=[{"type": ["launch"], "parameters": {}}]), "found type"),
        (wrong(config=[{"type": "sleep", "parameters": {"seconds": "soon"}}]), "seconds: found 'soon'"),
        (
            wrong(config=[{"type": "wait_window", "parameters": {"title": "x"}}, {"type": "login", "parameters": {}}]),
            "config mixes login.*with wait_window",
        ),
        (wrong(current=["short"]), "current names"),
        (wrong(verifiers={"a": {"instruction": "x", "evaluator": {"checks": 5}}}), "checks must be a list"),
        (wrong(verifiers={"a": {"instruction": "x", "evaluator": {"func": 5}}}), "func a text or a list"),
        (wrong(verifiers={"a": {**OWN["verifiers"]["short"], "solution": ["key"]}}), "expected a list of actions"),
        (wrong(verifiers={"a": {**OWN["verifiers"]["short"], "solution": 5}}), "expected a list of actions"),
        ({**PUBLISHED, "current_task": {"evaluator3": "x"}}, "do not name the same verifiers"),
        ({**PUBLISHED, "task_template": {"evaluator1": "x"}}, "do not name the same verifiers"),
    ],
)
def test_fault_of_a_task_is_named_with_its_place(row, told):
    with pytest.raises(TaskError, match=f"file, line 7.*{told}"):
        read_family(row, "file, line 7")


def test_families_replace_tasks_in_training_splits_alone(tmp_path):
    folder = folder_of(tmp_path, tasks=[TASK], families=[PUBLISHED], train={"os": ["t"]}, test_all={"os": ["t"]})
    families, splits = read_splits(folder)
    assert len(families[splits["train"][0]].verifiers) == 2 and len(families[splits["test_all"][0]].verifiers) == 1


def test_osworlds_own_layout_is_read(tmp_path):
    (tmp_path / "examples" / "os").mkdir(parents=True)
    (tmp_path / "examples" / "os" / "t.json").write_text(json.dumps({k: v for k, v in TASK.items() if k != "domain"}))
    families, splits = read_splits(folder_of(tmp_path, test_all={"os": ["t"]}))
    assert families["t"].application == "os"
    assert splits == {"test_all": ["t"], "test_all_in_distribution": ["t"], "test_all_out_of_distribution": []}


def test_the_layout_of_the_published_families_is_read(tmp_path):
    plain = {key: value for key, value in TASK.items() if key != "domain"}
    for path, row in (
        ("examples/os/t.json", plain),
        ("examples/os/test.json", plain),  # a stray copy
        ("new_examples/os/t.json", {k: v for k, v in PUBLISHED.items() if k != "domain"}),
        ("new_examples/os/u.json", plain | {"id": "u"}),  # has no family
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(json.dumps(row))
    families, splits = read_splits(folder_of(tmp_path, train={"os": ["t"]}, test_all={"os": ["t"]}))
    assert families.keys() == {"t", "test", "family/t"}
    assert (splits["train"], splits["test_all"]) == (["family/t"], ["t"])
    assert families["family/t"].application == "os"


def test_folder_faults_are_named(tmp_path):
    with pytest.raises(TaskError, match="no such folder"):
        read_splits(tmp_path / "none")
    with pytest.raises(TaskError, match=r"holds neither tasks.jsonl"):
        read_splits(tmp_path)
    (tmp_path / "tasks.jsonl").write_text('{"id": \n')
    with pytest.raises(TaskError, match="tasks.jsonl, line 1: no JSON"):
        read_splits(tmp_path)
    folder_of(tmp_path, tasks=[TASK], test_all={"os": ["u"]})
    with pytest.raises(TaskError, match=r"test_all.json: names the task u"):
        read_splits(tmp_path)


def domain_of(path, **changed):
    config = config_of("osworld", backend="local", **changed)
    config.dataset.path = str(path)
    return make_domain(config)


MADE = """
import json
OWN = json.loads({own!r})

def rows(split):
    for number in range(2):
        yield OWN | {{"id": f"{{split}}{{number}}"}}

def alike(split):
    return [OWN | {{"application": split}}]

def twice(split):
    return [OWN, OWN]

def wrong(split):
    return [OWN | {{"config": 3}}]

def none(split):
    return []

def broken(split):
    return [OWN[split]]
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Functions of families in a module of the working directory."""
    (tmp_path / "families_of_mine.py").write_text(MADE.format(own=json.dumps(OWN)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("families_of_mine", None)


def test_families_that_a_function_makes_are_tasks(made, tmp_path):
    domain = domain_of("", families="families_of_mine:rows")
    assert [t.id for t in domain.tasks("train") + domain.tasks("other")] == ["train0", "train1", "other0", "other1"]
    assert domain.tasks("train")[0].payload["instruction"] == "Delete a."
    assert [path.name for path in domain.data_files("train")] == ["families_of_mine.py"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("twice", "split train: two families have the id mine"),
        ("wrong", "split train, row 1: config: found 3, expected a list of set-up steps"),
        ("none", "split train: it yields no family"),
        ("broken", "families_of_mine.py, line 22: KeyError: 'train'; expected a function of a split's name"),
        ("nobody", "families_of_mine.py defines no nobody"),
    ],
)
def test_a_function_that_makes_no_families_is_told(made, name, told):
    with pytest.raises((TaskError, ConfigError), match=told):
        domain_of("", families=f"families_of_mine:{name}").tasks("train")


def test_families_have_one_source_and_ids_of_their_own(made, tmp_path):
    domain = domain_of("", families="families_of_mine:alike")
    domain.tasks("train")
    with pytest.raises(TaskError, match="split eval: the family mine differs from the one with this id"):
        domain.tasks("eval")
    with pytest.raises(ConfigError, match="leave one of them empty"):
        domain_of(folder_of(tmp_path / "folder", families=[OWN]), families="families_of_mine:rows")
    with pytest.raises(ConfigError, match="desktops are drawn"):
        make_domain(config_of("osworld", backend="canvas", families="families_of_mine:rows"))
    with pytest.raises(ConfigError, match="found 'rows', expected module:name"):
        domain_of("", families="rows")


def test_tasks_that_cannot_be_done_are_few_in_the_training_split_whatever_its_name(tmp_path):
    rows = [OWN | {"id": f"f{i}", "current": "long" if i % 2 else "short"} for i in range(40)]
    folder = folder_of(tmp_path, families=rows, mine={"files": [row["id"] for row in rows]}, admission_local={})
    (folder / "mine.json").write_text(json.dumps({"files": [f"family/{row['id']}" for row in rows]}))
    config = config_of("osworld", backend="local", infeasible=0.2)
    config.dataset.path, config.dataset.train_split = str(folder), "mine"
    domain = make_domain(config)
    kinds = [domain.kind(task) for task in domain.tasks("mine")]
    assert (kinds.count("infeasible"), kinds.count("files")) == (5, 20)
    config.dataset.train_split = "train"
    assert len(make_domain(config).tasks("mine")) == 40, "it is measured as it is"


def test_own_families_have_lists_of_any_name_and_ids_of_their_own(tmp_path):
    domain = domain_of(folder_of(tmp_path / "a", families=[OWN], eval={"files": ["mine"]}))
    assert [task.payload["family"] for task in domain.tasks("eval")] == ["family/mine"]
    with pytest.raises(TaskError, match="line 2: another row has the id mine, too"):
        domain_of(folder_of(tmp_path / "b", families=[OWN, OWN]))


def test_a_check_keeps_its_own_words_whatever_their_length(tmp_path):
    long = {
        **OWN,
        "verifiers": {**WIDER["verifiers"], "wide": {**WIDER["verifiers"]["wide"], "instruction": "x" * 400}},
    }
    domain = domain_of(folder_of(tmp_path, families=[long], admission_local={}))
    [task] = domain.tasks("train")
    variant = domain.rewriting.parse('{"wide": null}', task, Direction.HARDER, "v")
    assert variant.payload["instruction"] == "x" * 400


def test_families_of_a_function_are_tried_and_refused_like_those_of_a_folder(tmp_path, monkeypatch):
    (tmp_path / "families_tried.py").write_text(f"def rows(split):\n    yield {OWN!r}\n")
    monkeypatch.syspath_prepend(tmp_path)
    domain = domain_of("", families="families_tried:rows")
    assert len(domain.tasks("train")) == 1
    assert domain.world.admission.path == tmp_path / "admission_rows_local.json"
    name = domain.world.verdict_name("mine", "short")
    domain.world.admission.path.write_text(json.dumps({name: "an untouched desktop scores 1"}))
    domain = domain_of("", families="families_tried:rows")
    assert domain.refusal(domain.tasks("train")[0]).startswith("an untouched desktop scores 1")


def test_admission_without_refusals_hides_nothing(tmp_path):
    domain = domain_of(folder_of(tmp_path, families=[OWN], admission_local={}))
    assert [task.id for task in domain.tasks("train")] == ["family/mine"]


WIDER = {**OWN, "verifiers": {**OWN["verifiers"], "wide": checked(kind="exists", path="~/b")}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"short": "delete A."}', "unchanged"),
        ('{"huge": "x"}', "unknown_verifier"),
        ('{"long": "Never ever."}', "infeasible"),  # their share is capped
        ('{"wide": "x"}', "pre_solved"),
        ('{"wider": "x"}', "not_admitted"),
    ],
)
def test_variants_of_a_family_choose_a_verifier_that_may_be_used_and_words(tmp_path, text, reason):
    family = {**WIDER, "verifiers": {**WIDER["verifiers"], "wider": checked(kind="exists", path="~/c")}}
    domain = domain_of(folder_of(tmp_path, families=[family]))
    domain.world.admission.verdicts[domain.world.verdict_name("family/mine", "wide")] = "an untouched desktop scores 1"
    domain.world.admission.faults[domain.world.verdict_name("family/mine", "wider")] = "set-up step 1: no disk"
    [task] = domain.tasks("train")
    with pytest.raises(RejectedTask) as why:
        domain.rewriting.parse(text, task, Direction.HARDER, "v")
    assert why.value.reason == reason
    assert "wide" not in domain.rewriting.messages(task, Direction.HARDER, 1.0, "")[-1]["content"]
    admitted = domain_of(folder_of(tmp_path, families=[family], admission_local={}))
    variant = admitted.rewriting.parse('{"wide": "Make b."}', task, Direction.HARDER, "v")
    assert admitted.kind(variant) == "files" and admitted.describe(variant) == "Make b."


def test_tasks_that_cannot_be_done_are_capped_in_training_alone(tmp_path):
    rows = [{**TASK, "id": f"t{i}", **({} if i < 9 else {"evaluator": {"func": "infeasible"}})} for i in range(20)]
    ids = {"os": [row["id"] for row in rows]}
    domain = domain_of(folder_of(tmp_path, tasks=rows, train=ids, test_all=ids), infeasible=0.1)
    assert sum(domain.kind(t) == "infeasible" for t in domain.tasks("train")) == 1
    assert sum(domain.kind(t) == "infeasible" for t in domain.tasks("test_all")) == 11


def test_generated_families_are_the_same_every_time_and_have_several_verifiers():
    for split in ("train", "eval_in_distribution", "eval_out_of_distribution"):
        families = generated(split, 30, 0.2)
        assert families == generated(split, 30, 0.2)
        assert all(len(f.verifiers) > 1 and all(v.solution for v in f.verifiers.values()) for f in families)
    for family in generated("train", 30, 0.5):  # the rewriter has a longer way to ask for
        assert len({len(v.solution) for v in family.verifiers.values() if v.feasible}) > 1
    apart = {f.application for f in generated("train", 30, 0)} & {
        f.application for f in generated("eval_out_of_distribution", 30, 0)
    }
    assert not apart


def test_every_action_has_a_request():
    values = {
        "keys": ("ctrl", "c"), "text": "x", "coordinate": (999, 999), "pixels": -50, "time": 2.0, "status": "success"
    }  # fmt: skip
    for kind, (needed, optional) in NEEDS.items():
        if kind != "terminate":
            given = {name: values[name] for name in (*needed, *optional)}
            [request] = requests(Action(kind=kind, **given), (1920, 1080))
            assert request.code or request.text or request.pause_s
            if "coordinate" in given:
                assert "1919, 1079" in request.code


@needs_tasks
def test_all_of_osworlds_tasks_and_all_published_families_are_read():
    families, splits = read_splits(SHARED)
    assert len(splits["test_all"]) == 369 and len(splits["test_nogdrive"]) == 361
    assert len(splits["train_nochrome"]) == 222 and len(splits["test_all_out_of_distribution"]) == 147
    assert sum(len(families[name].verifiers) for name in splits["train_nochrome"]) >= 290
