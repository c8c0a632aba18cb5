"""Measure a policy on ALFWorld.

`python alfworld_eval.py config=configs/alfworld_eval.yaml [key=value ...]`
"""

import sys

from rlanything.config.load import load_config
from rlanything.processes.guard import run_guarded


def main() -> None:
    """Configuration first: a mistyped key should not wait for what takes seconds to import."""
    config = load_config(sys.argv[1:], "alfworld", learns=False)
    from rlanything.evaluation.benchmark import benchmark

    benchmark(config)


if __name__ == "__main__":
    run_guarded(main, "goes on where it stopped")
