"""Train policy, reward model and tasks together on OSWorld: `rlanything train` for configurations of OSWorld.

`python osworld_rl.py config=configs/osworld_rl.yaml [key=value ...]`
"""

import sys

from rlanything.__main__ import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]], domain="osworld")
