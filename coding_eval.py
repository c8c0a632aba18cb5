"""Measure a policy on coding problems: `rlanything eval` for configurations of coding.

`python coding_eval.py config=configs/coding_eval.yaml [key=value ...]`
"""

import sys

from rlanything.__main__ import main

if __name__ == "__main__":
    main(["eval", *sys.argv[1:]], domain="coding")
