"""How a step's time grows with its tasks, episodes, turns and engine replicas: all double twice, one at a time.

    python benchmarks/scaling.py --repeat 3

The real loop (tiny model, one thread, the small engine or vLLM) runs two steps for every size; the second is measured.
The exponents of seconds against what grows, and against tokens, are fitted by least squares in logarithms: 1 is linear.
An update's tokens are those of its model's trees, each token once; the tokens of all else are those that the policy
and the judge generated. Episodes do not end early: the model is too small to win. Replicas are all processes of one
machine and share its cores, so that 0 is the best there is.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from make_tiny_models import make_small_world  # noqa: E402

from rlanything.config.load import to_yaml  # noqa: E402
from rlanything.config.schema import Config, DatasetConfig, EngineConfig, ModelConfig  # noqa: E402
from rlanything.runs.metrics import read_jsonl  # noqa: E402

BASE = {"rollout.num_trial": 4, "rollout.num_rollout_per_trial": 4, "rollout.max_interaction_step": 5}
REPLICAS = "engine.policy.num_replica"
PARTS = ("rollout", "update policy", "update reward")
TOKENS = {"update policy": "policy trees", "update reward": "reward trees"}  # of all else: "generated"


def small(games: Path, model: Path, output: Path, kind: str) -> Config:
    """A step of one process."""
    config = Config(dataset=DatasetConfig(path=str(games), prompt="compact", options={"show_actions": "here"}))
    config.experiment.output_dir, config.experiment.num_thread = str(output), 1
    config.experiment.total_step, config.experiment.eval_every = 2, 0
    config.evaluation.num_task, config.evaluation.judge = 1, False
    config.adaptation.enabled = False
    config.rollout.max_response_tokens, config.reward.max_response_tokens = 16, 12
    config.algorithm.band = config.reward.band = [0.0, 1.0]
    config.reward.group = "task"
    for role in ("policy", "reward", "rewriter"):
        setattr(config.model, role, ModelConfig(path=str(model)))
        engine = EngineConfig(kind=kind, max_model_len=1024, max_num_seqs=512, kv_cache_gb=0.2)
        setattr(config.engine, role, engine)
    for training in (config.training.policy, config.training.reward):
        training.lr, training.num_update, training.kl_beta = 1e-5, 1, 0.0
        training.micro_batch_tokens = 2048  # as in the quickstart: more pads up to half of the rows on a CPU
    return config


def measure(config: Config, sizes: dict[str, int], name: str) -> dict[str, float]:
    """Seconds of the second step's parts, and its tokens."""
    config.experiment.name = name
    file = Path(config.experiment.output_dir) / f"{name}.yaml"
    file.write_text(to_yaml(config))
    overrides = [f"{key}={value}" for key, value in sizes.items()]
    command = [sys.executable, str(ROOT / "alfworld_rl.py"), f"config={file}", *overrides]
    subprocess.run(command, check=True, capture_output=True)
    records = read_jsonl(Path(config.experiment.output_dir) / name / "metrics.jsonl")
    [last] = [r for r in records if r["phase"] == "train" and r["step"] == 2]
    found = {part: last[f"seconds/{part}"] for part in PARTS}
    generated = last["engine/policy_generated_tokens"] + last["engine/reward_generated_tokens"]
    trees = {f"{role} trees": last[f"{role}/tree_tokens"] for role in ("policy", "reward")}
    return found | {"step": last["step_s"], "generated": generated} | trees


def exponent(x: list[float], y: list[float]) -> float:
    """Of y against x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=64, help="width of the model")
    parser.add_argument("--engine", default="transformers", choices=["transformers", "vllm"])
    parser.add_argument("--factors", type=int, nargs="+", default=[1, 2, 4])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        games, model = make_small_world(Path(name), args.hidden)
        config = small(games, model, Path(name), args.engine)
        kinds = ("generated", *TOKENS.values())
        columns = (*PARTS, "step")
        print(f"{'what grows':32}{'size':>5}{''.join(f'{name:>15}' for name in (*kinds, *columns))}")
        for key in (*BASE, REPLICAS):
            rows = []
            for factor in args.factors:
                sizes = BASE | {key: BASE.get(key, 1) * factor}
                runs = [measure(config, sizes, f"{key}_{factor}_{i}") for i in range(args.repeat)]
                rows.append({part: statistics.median(run[part] for run in runs) for part in runs[0]})
                tokens = "".join(f"{rows[-1][kind]:>15.0f}" for kind in kinds)
                told = "".join(f"{rows[-1][part]:>13.2f} s" for part in columns)
                print(f"{key:32}{sizes[key]:>5}{tokens}{told}", flush=True)
            seconds = {part: [row[part] for row in rows] for part in columns}
            sized = {part: exponent([float(factor) for factor in args.factors], seconds[part]) for part in columns}
            print(f"{'against size':>82}{''.join(f'{found:>15.2f}' for found in sized.values())}", flush=True)
            if key != REPLICAS:  # whose tokens stay the same
                tokened = [exponent([r[TOKENS.get(p, "generated")] for r in rows], seconds[p]) for p in columns]
                print(f"{'against tokens':>82}{''.join(f'{found:>15.2f}' for found in tokened)}", flush=True)


if __name__ == "__main__":
    main()
