"""Measure a policy on coding problems.

`python coding_eval.py config=configs/coding_eval.yaml [key=value ...]`
"""

import sys

from rlanything.config.load import load_config
from rlanything.processes.guard import run_guarded


def main() -> None:
    """Configuration first: a mistyped key should not wait for what takes seconds to import."""
    config = load_config(sys.argv[1:], "coding", learns=False)
    from rlanything.evaluation.benchmark import benchmark

    benchmark(config)


if __name__ == "__main__":
    run_guarded(main, "goes on where it stopped")
