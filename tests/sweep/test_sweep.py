"""A sweep: variants and seeds as command lines, its figures against numbers worked out by hand, and its pages."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from builders import group, trajectory
from runs_helpers import small_config

from rlanything.config.load import load_as, to_yaml
from rlanything.config.sweep import SweepConfig
from rlanything.errors import ConfigError, RunError
from rlanything.runs.metrics import append_jsonl
from rlanything.runs.progress import Progress
from rlanything.runs.store import write_groups
from rlanything.sweep.figures import curve, paired_difference, rows, splits
from rlanything.sweep.runner import DONE, Trainings, cells, finished, sweep
from rlanything.sweep.table import write_tables
from rlanything.types import Task

ROOT = Path(__file__).parents[2]


@pytest.fixture
def base(tmp_path):
    config = small_config(tmp_path / "games", tmp_path / "model", tmp_path, "base")
    (tmp_path / "base.yaml").write_text(to_yaml(config))
    return SweepConfig(base=str(tmp_path / "base.yaml"), output=str(tmp_path / "sweep"))


def test_every_variant_has_every_seed_and_words_know_theirs(base):
    base.seeds, base.common = [0, 3], ["model.policy.path=made/policy{_seed}"]
    base.variants = {"whole loop": [], "no steps": ["algorithm.step_weight=0", "experiment.total_step=1{seed}"]}
    made = cells(base)
    assert [c.name for c in made] == [
        "whole loop, seed 0",
        "no steps, seed 0",
        "whole loop, seed 3",
        "no steps, seed 3",
    ]
    assert made[0].words[1] == "model.policy.path=made/policy" and made[3].words[1] == "model.policy.path=made/policy_3"
    assert "experiment.total_step=13" in made[3].words and made[3].folder.name == "no_steps_3"
    assert "experiment.seed=3" in made[3].words


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        ({}, "expected at least one of each"),
        ({"a": [], "b": ["algorithm.nonsense=1"]}, "variants, 'b': algorithm.nonsense: unknown"),
        ({"../a": []}, "expected letters, digits"),
        ({"a b": [], "a_b": []}, "variants: 'a b' and 'a_b' would share a folder"),
        ({"a": [], "b": ["algorithm.options={discount: 1}"]}, "variants, 'b': algorithm.options.discount: unknown"),
        ({"a": ["algorithm.advantage=mine"]}, "variants, 'a': algorithm.advantage: .*mine"),
        ({"a": ["evaluation.splits=[]"]}, "variants, 'a': evaluation.splits is empty, so there is nothing to compare"),
    ],
)
def test_bad_variants_are_named_before_anything_runs(base, variants, said):
    base.variants = variants
    with pytest.raises(ConfigError, match=said):
        cells(base)


def write_run(folder, rates, before=0.25, step_s=10.0, middle=None):
    """A finished run, of 4 episodes a task: success by task at its last evaluation, `before` for all at the first, and
    `middle` for all at one between them, if it is given."""
    (folder / "evaluations").mkdir(parents=True)
    between = [] if middle is None else [(1, dict.fromkeys(rates, middle))]
    for step, of_step in ((0, dict.fromkeys(rates, before)), *between, (2, rates)):
        groups = []
        for task, rate in of_step.items():
            groups.append(
                group(*(trajectory(1 if i < 4 * rate else -1, [()]) for i in range(4)), task=Task(id=task, payload={}))
            )
            for t in groups[-1].trajectories:
                t.task_id = task
        write_groups(folder / f"evaluations/step_00000{step}_seen.parquet", groups, lambda t: t.id, lambda t: "any")
    after = sum(rates.values()) / len(rates)
    evaluation = {"phase": "eval", "split": "seen", "rm_process_accuracy": None}
    train = {
        "phase": "train",
        "step_s": step_s,
        "tasks/accepted": 3.0,
        "engine/policy_generated_tokens": 500,
        "engine/reward_generated_tokens": 1500,
    }
    kinds = {"success_rate/easy": after, "success_rate/hard": 0.0}
    lines = [evaluation | {"step": 0, "success_rate": before} | kinds, train | {"step": 1}]
    lines += [evaluation | {"step": 1, "success_rate": middle} | kinds] if between else []
    lines += [train | {"step": 2}]
    append_jsonl(folder / "metrics.jsonl", [*lines, evaluation | {"step": 2, "success_rate": after} | kinds])


def test_an_output_that_is_a_file_is_named(base, tmp_path):
    (tmp_path / "sweep").write_text("")
    base.variants = {"a": []}
    with pytest.raises(RunError, match="output=.*sweep is a file, expected a folder"):
        sweep(base, Progress())


@pytest.fixture
def runs(base, tmp_path):
    base.seeds, base.variants = [0, 1], {"first": [], "other": ["algorithm.step_weight=0"]}
    made = {(c.variant, c.seed): c for c in cells(base)}
    for cell, rates in (
        (made["first", 0], {"x": 0.5, "y": 0.0}),
        (made["first", 1], {"x": 1.0, "y": 0.0}),
        (made["other", 0], {"x": 1.0, "y": 0.25, "z": 1.0}),
    ):
        write_run(cell.folder, rates)
        (cell.folder / DONE).write_text("\n".join(cell.words))
    return finished(list(made.values()))  # the last cell is not done


def test_variants_are_compared_on_the_seeds_and_tasks_of_both(runs):
    assert splits(runs) == ["seen"]
    first, other = rows(runs, "seen")
    assert (first.variant, first.num_seed, first.before, first.after) == ("first", 2, 0.25, 0.375)
    assert (first.difference, first.tokens, first.seconds) == (None, 4000, 20.0) and math.isnan(first.rm_process)
    mean, low, high = other.difference  # seed 0 alone: x +0.5, y +0.25
    half = pytest.approx(12.706 * 0.125)  # Student's quantile for two tasks, and half of their distance
    assert mean == 0.375 and high - mean == half and mean - low == half and other.kinds == {"easy": 0.75, "hard": 0.0}
    assert curve(runs["first"], "seen") == [(0.0, 0.0, 0.0, 0.25), (2.0, 20.0, 4000.0, 0.375)]


def test_at_equal_seconds_a_slow_variant_is_read_between_its_evaluations(runs):
    slow = {"x": 1.0, "y": 0.75}
    write_run(folder := runs["first"][0].with_name("slow_0"), slow, step_s=40.0)
    first, late = rows({"first": {0: runs["first"][0]}, "slow": {0: folder}}, "seen")
    assert first.at_equal_seconds == first.after == 0.25 and first.difference_at_equal_seconds is None
    # 20 of 80 seconds: a quarter of the way from 0.25 each to 1.0 and 0.75.
    assert late.after == 0.875 and late.at_equal_seconds == pytest.approx((0.4375 + 0.375) / 2)
    assert late.difference[0] == 0.625
    # For x 0.4375 less 0.5, for y 0.375 less 0.
    mean, half = (-0.0625 + 0.375) / 2, 12.706 * 0.4375 / 2  # Student's quantile for two tasks
    assert late.difference_at_equal_seconds == pytest.approx((mean, mean - half, mean + half))
    write_run(later := folder.with_name("later_0"), slow, step_s=16.0, middle=0.5)
    [_, late] = rows({"first": {0: runs["first"][0]}, "later": {0: later}}, "seen")
    # 20 of 32 seconds: 16 until the second evaluation, and then a quarter of the way.
    assert late.at_equal_seconds == pytest.approx((0.625 + 0.5625) / 2)


@pytest.mark.parametrize("file", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_variant_of_the_shipped_experiments_can_be_read(file, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = load_as(SweepConfig, [f"config={file}"])
    assert len(cells(config)) == len(config.variants) * len(config.seeds)


def test_seeds_and_tasks_both_count_as_chance():
    rng = np.random.default_rng(1)
    tasks = [str(i) for i in range(200)]
    zero = {s: dict.fromkeys(tasks, 0.0) for s in range(4)}
    of_seeds = {s: dict.fromkeys(tasks, shift) for s, shift in enumerate((0.0, 0.1, 0.2, 0.3))}
    mean, low, high = paired_difference(of_seeds, zero)
    assert mean == pytest.approx(0.15) and low < 0.0 and high > 0.3, "200 tasks do not make four seeds more"
    of_tasks = {s: {t: float(rng.random() < 0.5) for t in tasks} for s in range(4)}
    mean, low, high = paired_difference(of_tasks, zero)
    assert 0.4 < low < mean < high < 0.6
    assert all(math.isnan(value) for value in paired_difference(zero, {}))
    one = paired_difference({0: of_tasks[0]}, zero)
    assert 0.4 < one[1] < one[0] < one[2] < 0.6 and one[2] - one[1] == pytest.approx(4 * 0.5 / 200**0.5, rel=0.02)


@pytest.mark.parametrize(
    ("num_seed", "of_seeds", "of_tasks"), [(3, 0.03, 0.1), (2, 0.0, 0.1), (4, 0.1, 0.0), (3, 0.0, 0.0)]
)
def test_intervals_hold_the_truth_as_often_as_they_say(num_seed, of_seeds, of_tasks):
    rng = np.random.default_rng(7)
    held = []
    for _ in range(300):
        shift = 0.1 + of_seeds * rng.normal(size=(num_seed, 1)) + of_tasks * rng.normal(size=100)
        x = shift + 0.4 * rng.normal(size=(num_seed, 100))
        ours = {s: {str(t): float(x[s, t]) for t in range(100)} for s in range(num_seed)}
        _, low, high = paired_difference(ours, {s: dict.fromkeys(ours[s], 0.0) for s in ours})
        held.append(low < 0.1 < high)
    assert 0.92 <= np.mean(held) <= 0.995


def test_seeds_with_tasks_of_their_own_keep_all_of_them_and_count_as_one_value_each():
    ours = {s: {f"{s}/{i}": 1.0 for i in range(10)} | {"all": 1.0} for s in range(3)}
    shifts = (0.1, 0.2, 0.6)
    theirs = {s: dict.fromkeys(ours[s], 1.0 - shift) for s, shift in enumerate(shifts)}
    mean, low, high = paired_difference(ours, theirs)
    assert mean == pytest.approx(0.3), "not that of the one task that they share"
    assert high - low == pytest.approx(2 * 4.303 * np.std(shifts, ddof=1) / 3**0.5)


def test_a_task_that_one_seed_lost_is_left_out_for_all():
    rng = np.random.default_rng(3)
    whole = {s: {str(t): float(rng.random()) for t in range(100)} for s in range(3)}
    zero = {s: dict.fromkeys(whole[s], 0.0) for s in whole}
    lacking = {s: {t: x for t, x in whole[s].items() if t != str(s)} for s in whole}
    shared = {s: {t: x for t, x in whole[s].items() if int(t) > 2} for s in whole}
    assert paired_difference(lacking, zero) == paired_difference(shared, zero) != paired_difference(whole, zero)


def test_pages_hold_the_table_the_curves_and_what_failed(runs, tmp_path):
    renamed = {"first": runs["first"], "<i>other": runs["other"]}
    write_tables(tmp_path, renamed, {"a, seed 1": "no <memory>"}, [["first", "<i>other"]])
    text, page = (tmp_path / "sweep.md").read_text(), (tmp_path / "sweep.html").read_text()
    assert "| first | 2 | 25.0 % | 37.5 % | – | 37.5 % | – | 37.5 % | 0.0 % | – | 3 | 0.00 | 20 |" in text
    assert "seen, first less <i>other: -37.5 (-196.3 to +121.3); at equal seconds -37.5" in text
    assert "+37.5 (-121.3 to +196.3)" in text and "a, seed 1: failed (no <memory>)" in text
    assert (
        page.count("<polyline") == 6 and "&lt;i&gt;other" in page and "no &lt;memory&gt;" in page and "<i>" not in page
    )


def test_a_pair_to_compare_names_variants(base):
    base.variants, base.compare = {"a": [], "b": []}, [["b", "c"]]
    with pytest.raises(ConfigError, match="compare: found 'c', expected names of variants: a, b"):
        cells(base)


def test_a_run_of_other_words_is_not_done(runs, base):
    assert sum(cell.is_done for cell in cells(base)) == 3
    base.common = ["experiment.total_step=9"]
    assert not any(cell.is_done for cell in cells(base))


def test_a_training_that_a_stopped_sweep_did_not_start_leaves_no_log(base):
    base.variants = {"whole": []}
    [cell], trainings = cells(base), Trainings(1)
    cell.folder.parent.mkdir()
    trainings.stop()
    assert trainings.run(cell) == "stopped" and not cell.log.exists()


@pytest.mark.slow
@pytest.mark.integration
def test_a_sweep_that_is_stopped_goes_on_and_a_variant_that_fails_stops_no_other(world, tmp_path):
    config = small_config(world.games, world.model, tmp_path, "base")
    config.experiment.total_step = 2
    (tmp_path / "base.yaml").write_text(to_yaml(config))
    variants = {"whole": [], "broken": ["model.rewriter.path=nowhere"], "outcome": ["algorithm.advantage=trajectory"]}
    given = {"base": str(tmp_path / "base.yaml"), "output": str(tmp_path / "sweep"), "at_once": 2, "variants": variants}
    (tmp_path / "sweep.yaml").write_text(json.dumps(given))
    line = [sys.executable, "-m", "rlanything", "sweep", f"config={tmp_path / 'sweep.yaml'}"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as stopped:
        while not (tmp_path / "sweep/whole_0/metrics.jsonl").exists():
            assert stopped.poll() is None, "it ended before it was stopped"
            time.sleep(0.1)
        os.kill(stopped.pid, signal.SIGTERM)
        assert "goes on where it stopped" in stopped.communicate(timeout=120)[1] and stopped.returncode == 143
    assert not subprocess.run(["pgrep", "-f", str(tmp_path / "sweep")], capture_output=True, check=False).stdout

    done = subprocess.run(line, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert "broken, seed 0: failed (" in done.stdout and "nowhere" in done.stdout
    table = (tmp_path / "sweep/sweep.md").read_text()
    assert "| whole | 1 |" in table and "| outcome | 1 |" in table and "broken, seed 0: failed" in table
    assert load_as(SweepConfig, line[4:]).variants == variants
