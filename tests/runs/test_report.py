"""The report of a run: one file, right figures, safe against model output, bounded in size, there from the start."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from builders import judgement, summaries
from report_runs import group, write_evaluation, write_step

from rlanything.algorithm.tasks import TaskPool
from rlanything.config.schema import Config
from rlanything.domains.parts import variant_of
from rlanything.evaluation.figures import wilson
from rlanything.runs import excerpts
from rlanything.runs.folder import RunFolder
from rlanything.runs.metrics import Metrics, append_jsonl
from rlanything.runs.report import before_after, report_data, write_report
from rlanything.types import Direction, Group, Status, Task, Trajectory

ATTACK = "</script><img src=x onerror=alert(1)><script>alert(2)</script><!--STYLE--> &lt;"


class Reader(HTMLParser):
    """What a browser would make of the page: its tags, their attributes, and the text of the data block."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.data = ""
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._inside = ("id", "data") in attrs

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        self.data += data if self._inside else ""


def read_page(folder: RunFolder) -> tuple[str, Reader, dict[str, Any]]:
    page = folder.report.read_text(encoding="utf-8")
    reader = Reader(page)
    return page, reader, json.loads(reader.data)


def test_page_is_one_file_without_outside_references(folder: RunFolder) -> None:
    write_step(folder, 1, [group(Task(id="q", payload={}), [1, -1])])
    write_report(folder)
    page, reader, _ = read_page(folder)
    assert not re.search(r"https?:|//|@import|url\(", page)
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(reader.tags)
    assert not [name for name, _ in reader.attributes if name in ("src", "href") or name.startswith("on")]
    assert "default-src 'none'" in page and "console." not in page
    assert [p.name for p in folder.path.iterdir() if p.suffix in (".js", ".css", ".tmp")] == []


def test_page_holds_the_figures(folder: RunFolder) -> None:
    write_evaluation(folder, 0, "seen", 25, rm_process_accuracy=0.5)
    for step in (1, 2):
        write_step(
            folder,
            step,
            [group(Task(id="q", payload={}), [1, -1])],
            **{"seconds/rollout": 31.0, "step_s": 30.0, "policy/entropy": 0.123456789},
        )
    write_evaluation(folder, 2, "seen", 60, rm_process_accuracy=0.75)
    write_report(folder)
    _, _, data = read_page(folder)
    assert (data["step"], data["total_step"], data["seconds"], data["models"]["reward"]) == (
        2,
        40,
        60.0,
        "models/reward",
    )
    assert data["train"]["step"] == [1, 2]
    assert data["train"]["success_rate"] == [0.5, 0.5]
    assert data["train"]["policy/entropy"] == [0.12346, 0.12346]
    assert data["evaluations"]["seen"]["success_rate"] == [0.25, 0.6]
    assert data["evaluations"]["seen"]["success_low"] == [
        pytest.approx(wilson(25, 100)[0], abs=1e-5),
        pytest.approx(wilson(60, 100)[0], abs=1e-5),
    ]


def test_model_output_cannot_break_out_of_the_page(folder: RunFolder) -> None:
    task = Task(id=f"q{ATTACK}", payload={"sentence": ATTACK})
    episodes = group(task, [1, -1], text=ATTACK, observation=ATTACK)
    episodes.judgements[0].text = ATTACK
    write_step(folder, 1, [episodes])
    write_evaluation(folder, 1, ATTACK.replace("/", ""), 10)
    write_report(folder)
    page, reader, data = read_page(folder)
    assert page.count("</script") == 2 and page.count("<script") == 2 and "<img" not in page
    assert reader.tags.count("script") == 2 and "img" not in reader.tags
    shown = data["excerpts"]["files"][0]["tasks"][0]
    assert shown["description"] == ATTACK
    assert shown["episodes"][0]["turns"][0]["observation"] == ATTACK, "what was written must be shown as it was"
    assert shown["episodes"][0]["turns"][0]["judgements"][0][1] == ATTACK


def test_scripts_never_parse_markup() -> None:
    scripts = Path(excerpts.__file__).with_name("report").glob("*.js")
    text = "".join(p.read_text(encoding="utf-8") for p in scripts)
    assert text and not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser", text
    )


def test_before_after_compares_first_and_last_evaluation(folder: RunFolder) -> None:
    figures = [(0, 10, 0.55, 20.0, 0.3), (8, 99, 0.1, 1.0, 0.9), (16, 40, 0.8, 12.5, 0.05)]
    for step, successes, rm, turns, invalid in figures:
        write_evaluation(
            folder,
            step,
            "seen",
            successes,
            rm_process_accuracy=rm,
            mean_turns=turns,
            invalid_action_rate=invalid,
        )
    header, rows = before_after(folder)
    assert header == ["split", "figure", "step 0", "step 16", "change"]
    assert rows == [
        ["seen", "success (95 % interval)", "10.0 % (5.5 to 17.4)", "40.0 % (30.9 to 49.8)", "+30.0 points"],
        ["", "RM process accuracy", "55.0 %", "80.0 %", "+25.0 points"],
        ["", "mean turns", "20.0", "12.5", "-7.5"],
        ["", "invalid actions", "30.0 %", "5.0 %", "-25.0 points"],
    ]


def test_a_unit_tester_is_compared_by_its_tests(folder: RunFolder) -> None:
    for step, right in ((0, 0.4), (2, 0.6)):
        write_evaluation(folder, step, "seen", 25, test_accuracy=right, test_detect_rate=float("nan"))
    _, rows = before_after(folder)
    assert [row[1:] for row in rows[1:3]] == [
        ["unit tests right", "40.0 %", "60.0 %", "+20.0 points"],
        ["unit tests telling", "–", "–", "–"],
    ]


def test_programs_are_shown_against_their_tests(folder: RunFolder) -> None:
    programs = group(Task(id="q", payload={}), [1, -1])
    for trajectory, results in zip(programs.trajectories, [("ok",), ("wrong_answer",)], strict=True):
        trajectory.turns[0].results = results
    right = judgement({(0, 0): 1, (1, 0): -1}, shared=True, text="```input\n1\n```", advantage=0.5)
    none = judgement({(0, 0): None, (1, 0): None}, shared=True, text="what?", parse_error="no blocks", counts=False)
    programs.judgements = [right, none]
    write_step(folder, 1, [programs])
    write_report(folder)
    [file] = read_page(folder)[2]["excerpts"]["files"]
    [task] = file["tasks"]
    assert task["tests"] == [[1, "```input\n1\n```", "", 0.5], [None, "what?", "no blocks", 0.0]]
    turns = [episode["turns"][0] for episode in task["episodes"]]
    assert [t["results"] for t in turns] == [["ok"], ["wrong_answer"]]
    assert [t["test_scores"] for t in turns] == [[1, None], [-1, None]]


def test_before_after_with_one_evaluation_and_with_none(folder: RunFolder) -> None:
    assert before_after(folder) == (["split", "figure", "before", "after", "change"], [])
    write_evaluation(folder, 0, "seen", 10, rm_process_accuracy=None)
    header, rows = before_after(folder)
    assert header[2:4] == ["step 0", "after"]
    assert [row[3:] for row in rows] == [["–", "–"]] * 4
    assert rows[1] == ["", "RM process accuracy", "–", "–", "–"]


@pytest.mark.parametrize("begun", [False, True])
def test_an_empty_or_unfinished_run_gives_a_page(folder: RunFolder, begun: bool) -> None:
    if begun:
        write_evaluation(folder, 0, "seen", 0, rm_process_accuracy=float("nan"))
        broken = Trajectory(task_id="q", index=0, status=Status.ENV_ERROR, error="the environment broke")
        write_step(folder, 1, [Group(task=Task(id="q", payload={}), trajectories=[broken])])
        with open(folder.metrics, "a") as file:
            file.write('{"step": 2, "ph')  # a crash cut the last line
    write_report(folder)
    _, _, data = read_page(folder)
    assert data["step"] == int(begun)
    assert [f["path"] for f in data["excerpts"]["files"]] == ["rollouts/step_000001.parquet"] * begun


def test_a_folder_that_was_never_opened_gives_a_page(config: Config) -> None:
    folder = RunFolder(config)
    write_report(folder)
    assert read_page(folder)[2]["total_step"] is None


def test_lineage_tells_what_became_of_every_variant(folder: RunFolder) -> None:
    root, quiet = Task(id="root", payload={"sentence": "find a mug"}), Task(id="quiet", payload={})
    harder = variant_of(root, {}, Direction.HARDER, "root~1")
    easier = variant_of(harder, {}, Direction.EASIER, "root~2")
    pool = TaskPool.of([root, quiet], 0.2, 0.8, 0)
    first = [group(root, [1] * 8), group(quiet, [1, -1])]
    pool.settle(summaries(first), 1, 2)
    pool.reject(pool.rewrite_requests(summaries(first), 4, 2)[0], 1, {"unchanged": 3})
    pool.propose(harder, 1.0, 1, "find a hot mug")
    pool.settle(summaries([group(harder, [1, -1, -1, -1])]), 2, 2)
    pool.propose(easier, 0.25, 2, "find a cup")
    pool.settle(summaries([group(easier, [-1] * 8)]), 3, 2)
    append_jsonl(folder.ledger, pool.drain_events())
    write_step(folder, 1, first)
    found = report_data(folder)["lineages"]
    assert found["total"] == 1, "a task without variants is no family"
    nodes = {n["id"]: n for n in found["families"][0]["nodes"]}
    assert list(nodes) == ["root", "root~1", "root~2"]
    assert nodes["root"]["sentence"] == "find a mug", "the root's sentence stands with its episodes"
    assert nodes["root"]["rejected"] == [[1, "harder", {"unchanged": 3}]]
    assert (nodes["root~1"]["verdict"], nodes["root~1"]["decided"], nodes["root~1"]["accuracy"]) == (
        "accepted",
        2,
        0.25,
    )
    assert (nodes["root~1"]["sentence"], nodes["root~1"]["born"], nodes["root~1"]["measured"]) == (
        "find a hot mug",
        1,
        [[2, 0.25]],
    )
    assert nodes["root~2"]["verdict"] == "dropped"
    assert nodes["root~2"]["reason"].replace("\u00a0", " ") == "solved 0 %, which does not lie between 25 % and 80 %"


def test_tasks_of_mixed_outcome_come_first() -> None:
    accuracies = {"none": 0.0, "all": 1.0, "half": 0.5, "most": 0.75, "few": 0.125, "variant": 0.875}
    assert excerpts.choose(accuracies, ["variant"], 5) == ["half", "most", "variant", "none", "all"]


def test_spread_keeps_both_ends() -> None:
    assert excerpts.spread([9, 8, 7, 6, 5, 4, 3, 2, 1], 3) == [9, 5, 1]
    assert excerpts.spread([2, 1], 8) == [2, 1]


@pytest.mark.slow
def test_page_stays_small_however_long_the_run(folder: RunFolder) -> None:
    """12 steps with long texts stand for the episodes, 3000 records for the curves, 500 families for the tasks."""
    metrics = Metrics(folder)
    long = "word <&> " * 2000
    for step in range(1, 13):
        groups = [group(Task(id=f"q{i}", payload={}), [1, -1] * 4, text=long, observation=long) for i in range(8)]
        for g in groups:
            for t in g.trajectories:
                t.turns *= 10
        write_step(folder, step, groups)
    append_jsonl(
        folder.metrics,
        ({"step": s, "phase": "train", **{f"figure/{i}": s / 7 for i in range(60)}} for s in range(13, 3000)),
    )
    metrics.close()
    head = {"step": 9, "event": "proposed", "parent_accuracy": 1.0, "direction": "harder", "description": long}
    for i in range(500):
        variants = ({**head, "task": f"q{i}~{j}", "root": f"q{i}", "parent": f"q{i}"} for j in range(10))
        append_jsonl(folder.ledger, variants)
    write_report(folder)
    _, _, data = read_page(folder)
    assert folder.report.stat().st_size < 6_000_000
    files = data["excerpts"]["files"]
    assert files and all(f["tasks"] for f in files)
    assert sum(len(t["episodes"]) for f in files for t in f["tasks"]) < sum(f["num_episode"] for f in files)
    assert (data["train"]["step"][0], data["train"]["step"][-1]) == (1, 2999)
    assert len(data["train"]["step"]) <= 1001
    assert 0 < len(data["lineages"]["families"]) < data["lineages"]["total"] == 500
