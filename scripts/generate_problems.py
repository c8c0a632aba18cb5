"""Make coding problems with tests and solutions: chains of operations on numbers and words.

    python scripts/generate_problems.py --out data/generated

writes train.json, eval_in_distribution.json (other chains, or other parameters) and eval_out_of_distribution.json
(chains of one operation more than any in training), as data/README.md describes. The same seed, the same problems.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from coding_problems.generator import LONGEST, generate_problems

from rlanything.processes.guard import run_guarded


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--train", type=int, default=1000, help="problems to train on (default 1000)")
    parser.add_argument("--eval", type=int, default=250, help="problems of each evaluation split (default 250)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    train = generate_problems(args.train, args.seed)
    splits = {
        "train": train,
        "eval_in_distribution": generate_problems(args.eval, args.seed + 1, without=train),
        "eval_out_of_distribution": generate_problems(args.eval, args.seed + 2, length=LONGEST + 1),
    }
    for name, rows in splits.items():
        (args.out / f"{name}.json").write_text(json.dumps(rows, indent=0), encoding="utf-8")
        print(f"{args.out / name}.json: {len(rows)} problems")


if __name__ == "__main__":
    run_guarded(main, "makes them anew")
