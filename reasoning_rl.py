"""Train on problems that a code tool helps to solve: `rlanything train` for configurations of reasoning.

`python reasoning_rl.py config=configs/reasoning_rl.yaml [key=value ...]`
"""

import sys

from rlanything.__main__ import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]], domain="reasoning")
