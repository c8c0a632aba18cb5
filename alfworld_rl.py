"""Train policy, reward model and tasks together on ALFWorld.

`python alfworld_rl.py config=configs/alfworld_rl.yaml [key=value ...]`
"""

import sys

from rlanything.config.load import load_config
from rlanything.processes.guard import run_guarded


def main() -> None:
    """Configuration first: a mistyped key should not wait for what takes seconds to import."""
    config = load_config(sys.argv[1:], "alfworld")
    from rlanything.train import train

    train(config)


if __name__ == "__main__":
    run_guarded(main)
