"""Make arithmetic problems with answers, and the calls of the code tool that solve them.

    python scripts/generate_reasoning.py --out data/generated

writes train.jsonl and eval_in_distribution.jsonl (other questions), as data/README.md describes. The same seed makes
the same problems. With --chains, those of the evaluation split and of a third one, chains.jsonl, need four or five
calls that depend on one another, and train.jsonl, for warm starts, has such problems among shorter ones. Problems of
seven calls are in seven.jsonl and eval_seven.jsonl.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from reasoning_problems.generator import FIVE, FOUR, ONE, SEVEN, SHARES, THREE, TWO, generate

from rlanything.processes.guard import run_guarded

CHAINS = {FOUR: 1.0, FIVE: 1.0}  # shares of kinds
MIXED = {ONE: 1.0, TWO: 1.0, THREE: 0.05, FOUR: 0.02, FIVE: 0.01}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--train", type=int, default=6000, help="problems to train on (default 6000)")
    parser.add_argument("--eval", type=int, default=300, help="problems of the evaluation split (default 300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chains", action="store_true", help="problems of four and five calls")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    held_out = generate(args.eval, args.seed + 1, shares=CHAINS if args.chains else SHARES)
    known = {row["question"] for row in held_out}
    train = generate(args.train, args.seed, known, MIXED if args.chains else SHARES)
    splits = {"train": train, "eval_in_distribution": held_out}
    if args.chains:
        splits["chains"] = generate(args.train, args.seed + 2, known, CHAINS)
        splits["eval_seven"] = generate(args.eval, args.seed + 11, shares={SEVEN: 1.0})
        known = {row["question"] for row in splits["eval_seven"]}
        splits["seven"] = generate(args.train * 2 // 3, args.seed + 12, known, {SEVEN: 1.0})
    for name, rows in splits.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (args.out / f"{name}.jsonl").write_text(text, encoding="utf-8")
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(row["kind"] for row in rows).items()))
        print(f"{args.out / name}.jsonl: {len(rows)} problems ({kinds})")


if __name__ == "__main__":
    run_guarded(main, "makes them anew")
