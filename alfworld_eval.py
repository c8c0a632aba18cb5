"""Measure a policy on ALFWorld: `rlanything eval` for configurations of ALFWorld.

`python alfworld_eval.py config=configs/alfworld_eval.yaml [key=value ...]`
"""

import sys

from rlanything.__main__ import main

if __name__ == "__main__":
    main(["eval", *sys.argv[1:]], domain="alfworld")
