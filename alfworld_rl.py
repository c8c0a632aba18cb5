"""Train policy, reward model and tasks together on ALFWorld: `rlanything train` for configurations of ALFWorld.

`python alfworld_rl.py config=configs/alfworld_rl.yaml [key=value ...]`
"""

import sys

from rlanything.__main__ import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]], domain="alfworld")
