"""Every other benchmark still runs, in its smallest size, and prints what it is for."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALLEST = {
    "rollout": ("--tasks 1 --episodes 2", r"lockstep / async: [\d.]+"),
    "weight_sync": ("--engine transformers", r"in place [\d.]+ s"),
    "scaling": ("--factors 1 2", r"against tokens +-?[\d.]+"),
    "engines": ("--threads 1 --episodes 2 --turns 2 --engines transformers", r"1 threads +transformers"),
    "packing": ("--episodes 1 --turns 3 --repeats 1", r"ratio [\d.]+x"),
    "desktop": ("--desktops 1 --seconds 1 --resets 2", r"drawn desktop: [\d,]+ steps/s"),
    "admission": ("", r"without / admission: [\d.]+"),
    "judging": (
        "--steps 1 --repeat 1 dataset.path={games} model.policy.path={model} model.reward.path={model} "
        "model.rewriter.path={model} dataset.num_task=0",
        r"ratio +[\d.]+",
    ),
    "quickstart_step": (
        "--other {root} --steps 2 --repeat 1 --threads 1 dataset.path={games} model.policy.path={model} "
        "model.reward.path={model} model.rewriter.path={model}",
        r"all +[\d.]+ +[\d.]+ +[\d.]+",
    ),
    "sandbox": ("--num 8", r"sandbox / subprocess: [\d.]+"),
}


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("name", SMALLEST)
def test_a_benchmark_runs(world, name):
    arguments, said = SMALLEST[name]
    line = [
        sys.executable,
        str(BENCHMARKS / f"{name}.py"),
        *arguments.format(games=world.games, model=world.model, root=BENCHMARKS.parent).split(),
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(said, done.stdout), done.stdout
