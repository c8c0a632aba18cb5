"""Measure a policy on problems that a code tool helps to solve: `rlanything eval` for configurations of reasoning.

`python reasoning_eval.py config=configs/reasoning_eval.yaml [key=value ...]`
"""

import sys

from rlanything.__main__ import main

if __name__ == "__main__":
    main(["eval", *sys.argv[1:]], domain="reasoning")
