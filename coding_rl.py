"""Train policy, reward model and tasks together on coding problems: `rlanything train` for configurations of coding.

`python coding_rl.py config=configs/coding_rl.yaml [key=value ...]`
"""

import sys

from rlanything.__main__ import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]], domain="coding")
