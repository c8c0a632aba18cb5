"""From nothing to a report: games, a tiny model, three warm starts of it, the closed loop.

Games and tiny model are made anew, byte for byte the same, in seconds; warm starts and loop keep what they finished.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path

CACHE = Path("cache/quickstart")
CONFIGS = "configs/quickstart"
ROLES = ("policy", "reward", "rewriter")
GAMES = {"--train": "2400", "--eval": "256", "--seed": "1"}


def stages(seed: int, overrides: list[str]) -> list[tuple[str, list[str]]]:
    """(what it is, command) of each stage.

    Seed 0 uses the configurations as they stand; another seed gives models and run names of its own, on the same games.
    """
    games, own = str(CACHE / "games"), f"_{seed}" if seed else ""
    tiny, policy = f"{CACHE}/tiny{own}", f"{CACHE}/policy{own}"
    make_games = ["scripts/generate_games.py", "--out", games, *(x for kv in GAMES.items() for x in kv)]
    make_model = ["scripts/make_tiny_models.py", "--data", games, "--out", tiny, "--seed", str(seed)]
    warm_starts = [
        (
            f"warm start of the {role}",
            ["-m", "rlanything.sft", f"config={CONFIGS}/sft_{role}.yaml"]
            + [f"seed={seed}", f"model.path={tiny if role == 'policy' else policy}", f"output={CACHE}/{role}{own}"],
        )
        for role in ROLES
    ]
    loop = ["alfworld_rl.py", f"config={CONFIGS}/alfworld.yaml", f"experiment.seed={seed}"]
    loop += [f"experiment.name=quickstart{own}", *(f"model.{role}.path={CACHE}/{role}{own}" for role in ROLES)]
    return [
        ("generating ALFWorld games", make_games),
        ("making a tiny model", make_model),
        *warm_starts,
        ("the closed loop", [*loop, *overrides]),
    ]


def run(command: list[str]) -> int:
    """Run a stage to its end, whatever interrupts this script; returns its exit status.

    Ctrl-C reaches the stage by itself, SIGTERM is passed on: it stops in its own way, and says what is kept.
    """
    stage = subprocess.Popen([sys.executable, *command])
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: stage.terminate())
    status = stage.wait()
    return status if status >= 0 else 128 - status  # a signal that the stage did not catch


def main() -> None:
    """Run the stages in order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of models, warm starts and loop (default 0)")
    parser.add_argument("overrides", nargs="*", help="key=value pairs for the closed loop")
    args = parser.parse_args()
    started = time.perf_counter()
    for what, command in stages(args.seed, args.overrides):
        print(f"[{time.perf_counter() - started:5.0f} s] {what}", flush=True)
        if status := run(command):
            sys.exit(status)
    print(f"[{time.perf_counter() - started:5.0f} s] done")


if __name__ == "__main__":
    main()
