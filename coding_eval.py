"""Measure a policy on coding problems.

`python coding_eval.py config=configs/coding_eval.yaml [key=value ...]`
"""

import sys

from rlanything.benchmark import benchmark
from rlanything.cli import run_guarded
from rlanything.load import load_config

if __name__ == "__main__":
    run_guarded(lambda: benchmark(load_config(sys.argv[1:])), "goes on where it stopped")
