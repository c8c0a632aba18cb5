"""Measure a policy on OSWorld: `rlanything eval` for configurations of OSWorld.

`python osworld_eval.py config=configs/osworld_eval.yaml [key=value ...]`
"""

import sys

from rlanything.__main__ import main

if __name__ == "__main__":
    main(["eval", *sys.argv[1:]], domain="osworld")
