"""How a step of the loop scales from 8 to 1,024 accelerators, by discrete-event simulation. Nothing ran on any.

    python benchmarks/simulate_cluster.py [KEY.SUB=VALUE ...] [--accelerators 8 64 1024] [--hbm 3.8e12 ...]
    python benchmarks/simulate_cluster.py --measure-driver cache/smollm2     (this machine's `Costs`, as flags)

Weak scaling: configs/alfworld_rl.yaml has the tasks, candidates and rollout.max_concurrent of 8 accelerators, and they
grow with the accelerators. Strong scaling: they stay. Engines have the recipe's shares (half policy, an eighth
rewriter, the rest reward), but reward replicas of one accelerator: in pairs, 8 accelerators do not divide by these
shares.

simulation.py says what is simulated and what is left out.
`Costs` are MEASURED on this code by --measure-driver (the defaults: two cores of an AMD EPYC).
`Hardware` is ASSUMED: data sheets if named, else guesses of the order. `Workload` is ASSUMED (ALFWorld, full prompts);
with --rollouts 'runs/NAME/rollouts/step_*.parquet' its lengths are drawn from a run. Trust how figures grow, not the
seconds.
"""

from __future__ import annotations

import argparse
import glob
import time
from collections import defaultdict
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path

import numpy as np
from measured_costs import measure
from simulation import (
    MODELS,
    Costs,
    Episode,
    Hardware,
    Step,
    Turn,
    Workload,
    draw_episodes,
    simulate,
)

from rlanything.config.load import load_config
from rlanything.config.schema import Config
from rlanything.errors import ConfigError
from rlanything.plan.memory import ModelSize, check_memory, device_gib
from rlanything.plan.plan import make_plan

RECIPE = ["config=configs/alfworld_rl.yaml", "engine.reward.tensor_parallel_size=1"]


def read_episodes(pattern: str, num: int) -> list[Episode]:
    """`num` episodes drawn from a run's files. A prompt's tokens beyond the last prompt and response are new."""
    from rlanything.runs.store import read_groups

    found: list[Episode] = []
    groups = [group for path in sorted(glob.glob(pattern)) for group in read_groups(Path(path), {})]
    for group, trajectory in ((g, t) for g in groups for t in g.valid if t.turns):
        found.append([])
        covering = defaultdict(list)
        for judgement in group.judgements:
            for place in judgement.scores:
                covering[place].append(judgement)
        held = judge_held = 0
        for i, turn in enumerate(trajectory.turns):
            prompt, response = len(turn.prompt.ids), len(turn.response_ids)
            judgements = covering[trajectory.index, i]
            judge = len(judgements[0].prompt.ids) if judgements else 0
            judged = tuple(len(j.response_ids) for j in judgements)
            found[-1].append(Turn(prompt, max(1, prompt - held), response, judge, max(1, judge - judge_held), judged))
            held, judge_held = prompt + response, judge
    return [found[i] for i in np.random.default_rng(0).integers(len(found), size=num)]


def print_table(weak: bool, args: argparse.Namespace, load: Workload, hardware: Hardware, costs: Costs) -> None:
    """Print a row for each placement, staleness and number of accelerators that the plan fits, and each series' fit."""
    config, fits, left_out = load_config([*RECIPE, *args.overrides]), [], []
    print(f"\n{'Weak' if weak else 'Strong'} scaling [s]; busy: policy / reward engines / learners / driver;")
    print("driver: its own work in all parts\n")
    header = "placement, staleness|accelerators|tasks|step|rollout|rewrite|learn|sync|driver|speed-up|busy|calls/s"
    print(f"|{header}|\n" + "|---" * (header.count("|") + 1) + "|")
    for placement in ("colocated", "split"):
        config.cluster.placement, steps = placement, dict[int, tuple[int, Step]]()
        for num in args.accelerators:
            plan = scaled(config, num, weak, args.learner_share, hardware.per_node)
            tasks = plan.rollout.num_trial + plan.adaptation.max_candidate
            count = tasks * plan.rollout.num_rollout_per_trial
            if why := does_not_fit(plan):
                left_out.append(f"{placement}, {num}: {why}")
            elif count <= args.max_episodes:
                episodes = read_episodes(args.rollouts, count) if args.rollouts else draw_episodes(load, plan, count)
                steps[num] = tasks, simulate(plan, episodes, load, hardware, costs)
        for staleness in (0, 1) if placement == "split" else (0,):  # colocated, nothing can overlap
            seconds = {num: step.seconds(staleness) for num, (_, step) in steps.items()}
            first = min(seconds)
            for num, (tasks, step) in steps.items():
                whole, busy = seconds[num], step.busy_s
                gain = seconds[first] / whole * (num / first if weak else 1)
                parts = whole, step.rollout_s, step.rewrite_s, step.learn_s, step.sync_s, busy["driver"]
                shares = (f"{busy.get(of, 0.0) / whole:.0%}" for of in ("policy", "reward", "learner", "driver"))
                row = [f"{placement}, {staleness}", num, tasks, *(f"{part:.0f}" for part in parts)]
                row += [f"{gain:.1f} ({gain * first / num:.0%})", " / ".join(shares)]
                row += [f"{step.calls / whole:.0f}"]
                print(f"|{'|'.join(map(str, row))}|", flush=True)
            fits.append(f"{placement}, {staleness}: {fit(seconds, weak)}")
    print("\n" + "\n".join([*fits, *left_out]))


def scaled(config: Config, num: int, weak: bool, learner_share: float, per_node: int = 8) -> Config:
    """The recipe on `num` accelerators; `learner_share` of them are the learners' if placement is split."""
    config = deepcopy(config)
    config.experiment.num_node, config.experiment.num_device = max(1, num // per_node), min(num, per_node)
    engines = num - round(num * learner_share) * (config.cluster.placement == "split")
    policy, rewriter = max(1, engines // 2), max(1, round(engines / 8))
    config.engine.policy.num_replica, config.engine.rewriter.num_replica = policy, rewriter
    reward = config.engine.reward
    reward.num_replica = max(1, (engines - policy - rewriter) // reward.tensor_parallel_size)
    if weak:
        for part, key in (("rollout", "num_trial"), ("rollout", "max_concurrent"), ("adaptation", "max_candidate")):
            setattr(getattr(config, part), key, getattr(getattr(config, part), key) * num // 8)
    return config


def does_not_fit(config: Config) -> str:
    """Why the plan of `dry_run=true` refuses it; nothing where it does not."""
    try:
        plan = make_plan(config, learns=True)
        sizes = {role: ModelSize(MODELS[role][0], "its config.json") for role in plan.roles}
        check_memory(config, device_gib(plan, sizes))
    except ConfigError as error:
        return str(error)
    return ""


def fit(seconds: dict[int, float], weak: bool) -> str:
    """Least relative squares of a + b n (weak) or a + b / n (strong: Amdahl), n = accelerators / the fewest."""
    n, s = np.array(list(seconds)) / min(seconds), np.array(list(seconds.values()))
    x = np.stack([np.ones(len(n)), n if weak else 1 / n], axis=1)
    a, b = np.linalg.lstsq(x / s[:, None], np.ones(len(n)), rcond=None)[0]
    error, limit = np.abs(x @ [a, b] / s - 1).max(), (a + b) / (b if weak else a)
    return f"step = {a:.0f} {b:+.1f} {'' if weak else '/ '}n s, within {error:.0%}; speed-up tends to {limit:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="KEY.SUB=VALUE", help="of configs/alfworld_rl.yaml")
    parser.add_argument("--accelerators", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256, 512, 1024])
    parser.add_argument("--max-episodes", type=int, default=1 << 15, help="of a step; rows with more are left out")
    parser.add_argument("--learner-share", type=float, default=0.4375, help="of the accelerators if they are split")
    parser.add_argument("--rollouts", default="", help="files of a run whose episodes are drawn")
    parser.add_argument("--measure-driver", metavar="TOKENIZER", help="folder of the model whose tokenizer is timed")
    for name, value in (asdict(Workload()) | asdict(Hardware()) | asdict(Costs())).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value, help=f"default {value:g}")
    args = parser.parse_args()
    load, hardware, costs = (of(**{n: getattr(args, n) for n in asdict(of())}) for of in (Workload, Hardware, Costs))
    if args.measure_driver:
        costs = measure(load_config([*RECIPE, *args.overrides]), load, args.measure_driver)
        return print(*(f"--{name.replace('_', '-')} {value:.2g}" for name, value in asdict(costs).items()))
    started = time.perf_counter()
    for weak in (True, False):
        print_table(weak, args, load, hardware, costs)
    print(f"\nsimulated in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
