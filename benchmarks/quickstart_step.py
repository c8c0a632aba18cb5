"""Seconds of a quickstart's step by phase, on this checkout against another one, from the same warm-started models.

    git worktree add /tmp/other 61fae39
    python benchmarks/quickstart_step.py --other /tmp/other --steps 6 --repeat 2 --threads 2

`make quickstart` must have made the models (or those of another domain: --domain coding). The two checkouts run by
turns, under this interpreter. The first step of a run warms up and does not count. Prints the median seconds of each
phase over all other steps, and the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = {"alfworld": ("cache/quickstart", "games"), "coding": ("cache/quickstart/coding", "problems")}
PREFIX = "seconds/"


def steps(checkout: Path, args: argparse.Namespace) -> list[dict[str, float]]:
    """The seconds of each phase of one run's steps, without the first one."""
    folder, data = DATA[args.domain]
    cache = Path(args.models or ROOT / folder).resolve()
    with tempfile.TemporaryDirectory() as output:
        words = [
            *(f"model.{role}.path={cache / role}" for role in ("policy", "reward", "rewriter")),
            f"dataset.path={cache / data}",
            f"experiment.output_dir={output}",
            "experiment.name=run",
            f"experiment.total_step={args.steps}",
            f"experiment.eval_every={args.steps}",
            f"experiment.save_every={args.steps}",
            f"experiment.num_thread={args.threads}",
            "evaluation.num_task=8",
            *args.words,
        ]
        command = [sys.executable, f"{args.domain}_rl.py", f"config=configs/quickstart/{args.domain}/loop.yaml", *words]
        environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": str(args.threads)}
        subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.DEVNULL, check=True)
        records = [json.loads(line) for line in (Path(output) / "run/metrics.jsonl").read_text().splitlines()]
    trained = [r for r in records if r["phase"] == "train"][1:]
    return [{k.removeprefix(PREFIX): v for k, v in r.items() if k.startswith(PREFIX)} for r in trained]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="a checkout of another commit")
    parser.add_argument("--domain", choices=DATA, default="alfworld")
    parser.add_argument("--models", help="folder of the warm-started models and the tasks")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("words", nargs="*", metavar="key=value", help="of the configuration, for both")
    args = parser.parse_args()
    checkouts = {"this": ROOT, "other": args.other.resolve()}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for i in range(args.repeat):
        for name in list(checkouts)[:: 1 if i % 2 else -1]:
            found[name] += steps(checkouts[name], args)
    print(f"{'phase':16} {'this [s]':>9} {'other [s]':>9}  other / this")
    totals = {name: statistics.median(sum(step.values()) for step in all_steps) for name, all_steps in found.items()}
    for phase in dict.fromkeys(phase for all_steps in found.values() for step in all_steps for phase in step):
        this, other = (statistics.median(step.get(phase, 0.0) for step in found[name]) for name in checkouts)
        print(f"{phase:16} {this:9.2f} {other:9.2f}  {other / this if this else float('nan'):12.2f}")
    print(f"{'all':16} {totals['this']:9.2f} {totals['other']:9.2f}  {totals['other'] / totals['this']:12.2f}")


if __name__ == "__main__":
    main()
