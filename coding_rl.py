"""Train policy, reward model and tasks together on coding problems.

`python coding_rl.py config=configs/coding_rl.yaml [key=value ...]`
"""

import sys

from rlanything.config.load import load_config
from rlanything.processes.guard import run_guarded


def main() -> None:
    """Configuration first: a mistyped key should not wait for what takes seconds to import."""
    config = load_config(sys.argv[1:], "coding")
    from rlanything.train import train

    train(config)


if __name__ == "__main__":
    run_guarded(main)
