"""Generated tasks of real desktops are solved by their scripts, and not by shorter ones."""

from __future__ import annotations

from contextlib import closing

import pytest
from builders import config_of
from desktop_world import desktop_domain, needs_desktops, options, play

from rlanything.evaluation.script import play_scripts
from rlanything.runs.progress import Progress
from rlanything.types import Task

pytestmark = [pytest.mark.integration, needs_desktops]


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


@pytest.mark.slow
def test_scripted_solutions_solve_every_generated_task(tmp_path, capsys):
    config = config_of("osworld", **options(eval_size=6, infeasible=0.5).model_dump())
    config.experiment.output_dir, config.evaluation.splits = str(tmp_path), ["eval_out_of_distribution"]
    config.rollout.env_timeout_s = 300.0
    play_scripts(config, Progress())
    told = capsys.readouterr().out
    assert "6 scripted solutions" in told and "100.0%" in told


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "eval_in_distribution", "eval_out_of_distribution"])
def test_every_verifier_is_solved_by_its_own_script_and_the_longest_by_no_shorter_one(tmp_path, split):
    with closing(desktop_domain(tmp_path, size=6, eval_size=6, desktops=1, spares=1, infeasible=0.3)) as domain:
        for task in domain.tasks(split):
            family = domain.world.families[task.payload["family"]]
            ways = {name: verifier.solution for name, verifier in family.verifiers.items()}
            for name, solution in ways.items():
                assert play(domain, domain.world.task_of(family.id, name), solution)[1].success, (family.id, name)
            feasible = sorted((n for n, v in family.verifiers.items() if v.feasible), key=lambda n: len(ways[n]))
            assert len(feasible) > 1
            longest = domain.world.task_of(family.id, feasible[-1])
            for name in feasible[:-1]:
                assert not play(domain, longest, ways[name])[1].success, (family.id, name)
