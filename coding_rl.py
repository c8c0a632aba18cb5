"""Train policy, reward model and tasks together on coding problems.

`python coding_rl.py config=configs/coding_rl.yaml [key=value ...]`
"""

import sys

from rlanything.cli import run_guarded
from rlanything.load import load_config
from rlanything.train import train

if __name__ == "__main__":
    run_guarded(lambda: train(load_config(sys.argv[1:])))
