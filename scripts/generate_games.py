"""Generate ALFWorld games for training and evaluation; no download is needed.

    python scripts/generate_games.py --out data/generated --train 3000 --eval 140 --seed 0

Writes train, eval_in_distribution (same floor plans, other tasks) and eval_out_of_distribution (floor plans that
training never sees) as <out>/<split>.jsonl.xz. The same arguments give byte-identical files.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from alfworld_games.files import export_games, load_packed, write_packed
from alfworld_games.floorplans import SPLITS
from alfworld_games.generator import GameKey, generate_games
from alfworld_games.scenes import PRESETS
from rich.console import Console
from rich.progress import track
from rich.table import Table

from rlanything.domains.alfworld.library import PackedGame
from rlanything.domains.alfworld.model import GoalKind
from rlanything.processes.guard import run_guarded


def tally(games: Iterable[PackedGame], rows: list[tuple[str, int, int, int]]) -> Iterator[PackedGame]:
    """Pass games on, noting (task type, floor plan, plan length, objects) of each."""
    for game in games:
        data, traj = game.data, game.traj
        objects = data["pddl_problem"].count("(objectType ")
        rows.append((traj["task_type"], traj["scene"]["scene_num"], len(data["walkthrough"]), objects))
        yield game


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the packed files")
    parser.add_argument("--train", type=int, default=3000, help="training games")
    parser.add_argument("--eval", type=int, default=140, help="games of each evaluation split")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--difficulty", choices=sorted(PRESETS), default="medium", help="medium: as real games are")
    parser.add_argument("--export", action="store_true", help="also write the json_2.1.1 tree for ALFWorld's tools")
    args = parser.parse_args()

    console = Console()
    table = Table("split", "games", "of a type", "plans", "steps", "objects", "seconds")
    table.caption = (
        "of a type: games per task type; plans: floor plans; steps: mean walkthrough; objects: mean per game"
    )
    taken: set[GameKey] = set()
    for split in SPLITS:
        count = args.train if split == "train" else args.eval
        start, rows = time.perf_counter(), list[tuple[str, int, int, int]]()
        games = generate_games(split, count, args.seed, PRESETS[args.difficulty], taken)
        path = args.out / f"{split}.jsonl.xz"
        write_packed(path, track(tally(games, rows), split, total=count, console=console))
        if args.export:
            export_games(args.out, load_packed(path))
        kinds = Counter(r[0] for r in rows)
        table.add_row(
            split,
            str(len(rows)),
            "-".join(str(n) for n in sorted({min(kinds[k] for k in GoalKind), max(kinds.values(), default=0)})),
            str(len({r[1] for r in rows})),
            f"{statistics.mean(r[2] for r in rows):.1f}" if rows else "-",
            f"{statistics.mean(r[3] for r in rows):.0f}" if rows else "-",
            f"{time.perf_counter() - start:.1f}",
        )
    console.print(table)
    console.print(f"written to {args.out}")


if __name__ == "__main__":
    run_guarded(main, "starts anew")
