"""From nothing to a report: games, tiny models, their warm starts, the closed loop. Finished parts are kept."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

CACHE = Path("cache/quickstart")
GAMES = {"--train": "2400", "--eval": "160", "--seed": "1"}


def stages(overrides: list[str]) -> list[tuple[str, list[str]]]:
    """(what it is, command) of each stage; each does nothing where its result is up to date."""
    games, tiny, configs = str(CACHE / "games"), str(CACHE / "tiny"), "configs/quickstart"
    warm_starts = [
        (f"warm start of the {role}", ["-m", "rlanything.sft", f"config={configs}/sft_{role}.yaml"])
        for role in ("policy", "reward", "rewriter")
    ]
    return [
        (
            "generating ALFWorld games",
            ["scripts/generate_games.py", "--out", games, *(x for kv in GAMES.items() for x in kv)],
        ),
        ("making a tiny model", ["scripts/make_tiny_models.py", "--games", games, "--out", tiny]),
        *warm_starts,
        ("the closed loop", ["alfworld_rl.py", f"config={configs}/alfworld.yaml", *overrides]),
    ]


def main() -> None:
    """Run the stages in order; the command line's key=value pairs go to the closed loop."""
    started = time.perf_counter()
    for what, command in stages(sys.argv[1:]):
        print(f"[{time.perf_counter() - started:5.0f} s] {what}", flush=True)
        result = subprocess.run([sys.executable, *command], check=False)
        if result.returncode:
            sys.exit(result.returncode)
    print(f"[{time.perf_counter() - started:5.0f} s] done")


if __name__ == "__main__":
    main()
