"""From nothing to a report: tasks, a tiny model, three warm starts of it, the closed loop.

Tasks and models of texts are made anew, byte for byte the same, in seconds. The model of images, warm starts and loop
keep what they finished. If the loop was begun, it alone goes on.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from coding_problems import GENERATED
from reasoning_problems import GENERATED_REASONING


@dataclass(frozen=True)
class Quickstart:
    """What a domain's quickstart is made of, besides its folder of configurations: loop.yaml and one of each role."""

    run: str  # name of the run
    cache: str  # folder of all that is made
    make_model: tuple[str, ...]  # the command that makes the tiny model
    start: dict[str, str]  # what each role's warm start begins as
    data: str = ""  # folder of tasks in the cache; empty if the domain makes its tasks itself
    what: str = ""  # is in that folder
    generate: tuple[str, ...] = ()  # the command that fills it
    entry: str = ""  # the loop's entry point, if the domain's name does not tell it
    own_steps: bool = False  # the reward model's warm start plays the policy, and learns to judge its steps


# Tiny models need no accelerator, and other libraries' bars and warnings tell a newcomer nothing.
QUIET_CPU = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
QUICKSTARTS = {
    "alfworld": Quickstart(
        "quickstart",
        "cache/quickstart",
        ("scripts/make_tiny_models.py",),
        {"policy": "tiny", "reward": "policy", "rewriter": "policy"},
        "games",
        "ALFWorld games",
        ("scripts/generate_games.py", "--train", "2400", "--eval", "256", "--seed", "1"),
    ),
    "coding": Quickstart(
        "quickstart_coding",
        "cache/quickstart/coding",
        ("scripts/make_tiny_models.py", "--domain", GENERATED, "--vocab", "640", "--hidden", "128"),
        {"policy": "tiny", "reward": "policy", "rewriter": "reward"},
        "problems",
        "programming problems",
        ("scripts/generate_problems.py", "--train", "1200", "--eval", "250"),
    ),
    "reasoning": Quickstart(
        "quickstart_reasoning",
        "cache/quickstart/reasoning",
        ("scripts/make_tiny_models.py", "--domain", GENERATED_REASONING, "--vocab", "900", "--hidden", "192"),
        {"policy": "tiny", "reward": "policy", "rewriter": "policy"},
        "problems",
        "arithmetic problems",
        ("scripts/generate_reasoning.py",),
    ),
    "osworld": Quickstart(
        "quickstart_osworld",
        "cache/quickstart/osworld",
        ("scripts/make_tiny_vision_model.py",),
        {"policy": "tiny", "reward": "policy", "rewriter": "policy"},
        own_steps=True,
    ),
}
QUICKSTARTS["chains"] = replace(
    QUICKSTARTS["reasoning"],
    run="chains",
    cache="cache/quickstart/chains",
    what="problems of four and five calls",
    generate=("scripts/generate_reasoning.py", "--chains"),
    entry="reasoning_rl.py",
)


def stages(domain: str, seed: int, overrides: list[str]) -> list[tuple[str, list[str]]]:
    """(what it is, command) of each stage.

    Seed 0 uses the configurations as they stand; another seed gives models and run names of its own, on the same tasks.
    """
    plan, own = QUICKSTARTS[domain], f"_{seed}" if seed else ""
    data, configs = f"{plan.cache}/{plan.data}", f"configs/quickstart/{domain}"
    folders = {name: f"{plan.cache}/{name}{own}" for name in ("tiny", *plan.start)}
    make_model = [*plan.make_model, "--out", folders["tiny"], "--seed", str(seed)]
    generate = [(f"generating {plan.what}", [*plan.generate, "--out", data])] if plan.data else []
    warm_starts = [
        (
            f"warm start of the {role}",
            ["-m", "rlanything", "sft", f"config={configs}/{role}.yaml", f"seed={seed}"]
            + [f"model.path={folders[start]}", f"output={folders[role]}"]
            + ([f"policy.path={folders['policy']}"] if plan.own_steps and role == "reward" else []),
        )
        for role, start in plan.start.items()
    ]
    loop = [plan.entry or f"{domain}_rl.py", f"config={configs}/loop.yaml", f"experiment.seed={seed}"]
    loop += [f"experiment.name={plan.run}{own}", *(f"model.{role}.path={folders[role]}" for role in plan.start)]
    return [
        *generate,
        ("making a tiny model", [*make_model, *(["--data", data] if plan.data else [])]),
        *warm_starts,
        ("the closed loop", [*loop, *overrides]),
    ]


def has_begun(domain: str, seed: int, overrides: list[str]) -> bool:
    """True if the closed loop was begun with models that are still there: it goes on with them.

    The warm starts would make others if the code has changed since, and the loop refuses to go on with others.
    """
    plan, own = QUICKSTARTS[domain], f"_{seed}" if seed else ""
    models = (Path(plan.cache, f"{role}{own}", "config.json") for role in plan.start)
    own_place = any(override.startswith("experiment.") for override in overrides)
    return not own_place and Path("runs", plan.run + own, "models.json").is_file() and all(m.is_file() for m in models)


def run(command: list[str]) -> int:
    """Run a stage to its end, whatever interrupts this script; returns its exit status.

    Ctrl-C reaches the stage by itself, SIGTERM is passed on: it stops in its own way, and says what is kept.
    """
    stage = subprocess.Popen([sys.executable, *command], env=os.environ | QUIET_CPU)
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: stage.terminate())
    status = stage.wait()
    return status if status >= 0 else 128 - status  # a signal that the stage did not catch


def main() -> None:
    """Run the stages in order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--domain", default="alfworld", choices=list(QUICKSTARTS))
    parser.add_argument("--seed", type=int, default=0, help="of models, warm starts and loop (default 0)")
    parser.add_argument("--models", action="store_true", help="make the models alone, for a sweep")
    parser.add_argument("overrides", nargs="*", help="key=value pairs for the closed loop")
    args = parser.parse_args()
    started = time.perf_counter()
    found = stages(args.domain, args.seed, args.overrides)
    if args.models:
        found = found[:-1]
    elif has_begun(args.domain, args.seed, args.overrides):
        found = found[-1:]
    for what, command in found:
        print(f"[{time.perf_counter() - started:5.0f} s] {what}", flush=True)
        if status := run(command):
            sys.exit(status)
    print(f"[{time.perf_counter() - started:5.0f} s] done")


if __name__ == "__main__":
    main()
