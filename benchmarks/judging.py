"""How much time it saves if the reward model judges in a process of its own, on the quickstart's models and games.

    make quickstart && python benchmarks/judging.py --repeat 2

Each measurement plays and judges `--steps` steps of rollouts (as many tasks as a step draws, candidates among them)
in a process of its own, without updates; the two settings take turns, and the median step of all counts. Prints seconds
a step and their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing


def measure(own_process: bool, steps: int, overrides: list[str]) -> list[float]:
    """Seconds of each step's rollouts, judged."""
    from rlanything.config.load import load_config
    from rlanything.plan.plan import make_plan
    from rlanything.rollout.collect import Batch
    from rlanything.run import Run
    from rlanything.runs.folder import RunFolder

    async def collect(run: Run) -> list[float]:
        rollout, seconds = run.config.rollout, []
        num = rollout.num_trial + run.config.adaptation.max_candidate
        tasks = run.originals
        for step in range(steps):
            started = time.perf_counter()
            drawn = tasks[step * num : (step + 1) * num]
            batch = Batch(tasks=drawn, num=rollout.num_rollout_per_trial, seed=str(step), rollout=rollout)
            await run.collect(batch, lambda: None)
            seconds.append(time.perf_counter() - started)
            run.sync_weights(step + 1)
        return seconds

    with tempfile.TemporaryDirectory() as output:
        fixed = ["config=configs/quickstart/alfworld/loop.yaml", "experiment.name=judging"]
        fixed += [f"experiment.output_dir={output}", f"engine.reward.own_process={own_process}"]
        config = load_config([*fixed, *overrides])
        folder = RunFolder(config)
        with folder.open(), closing(Run(make_plan(config, learns=True), folder)) as run:
            run.sync_weights(0)
            return asyncio.run(collect(run))


def main() -> None:
    """Run the measurements and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--own-process", choices=("true", "false"), help="only this setting, and print JSON")
    parser.add_argument("overrides", nargs="*", help="key=value pairs of the configuration")
    args = parser.parse_args()
    if args.own_process:
        print(json.dumps(measure(args.own_process == "true", args.steps, args.overrides)))
        return
    seconds: dict[str, list[float]] = {"false": [], "true": []}
    for _ in range(args.repeat):
        for own, found in seconds.items():
            command = [sys.executable, __file__, "--own-process", own, "--steps", str(args.steps), *args.overrides]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found += json.loads(done.stdout.splitlines()[-1])
    here, own = (statistics.median(seconds[key]) for key in ("false", "true"))
    print(f"judging in the same process   {here:5.1f} s a step (median of {len(seconds['false'])})")
    print(f"judging in its own process    {own:5.1f} s a step (median of {len(seconds['true'])})")
    print(f"ratio                         {here / own:5.2f}")


if __name__ == "__main__":
    main()
