"""The benchmark of updates still runs, and both of its sides still compute the same loss."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "train_mfu.py"


@pytest.mark.slow
@pytest.mark.integration
def test_the_learner_and_a_plain_loop_have_the_same_loss():
    sizes = ["--layers", "1", "--prompts", "2", "--share", "2", "--tokens", "512", "--repeat", "1"]
    done = subprocess.run([sys.executable, str(SCRIPT), *sizes], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses = [float(x) for x in re.findall(r"loss (-?[\d.]+)", done.stdout)]
    assert len(losses) == 2 and losses[0] == pytest.approx(losses[1], abs=1e-3)
    assert re.search(r"plain / learner: [\d.]+", done.stdout)
