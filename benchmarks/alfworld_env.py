"""Speed and memory of the embedded ALFWorld simulator against TextWorld as alfworld runs it, in one run.

    python benchmarks/alfworld_env.py --games valid_seen.jsonl.xz --seconds 20

All three play the same games by random admissible commands and list the admissible commands at every step:
- the simulator, one process;
- TextWorld's batch environment in one process (SyncBatchEnv), with the wrappers of alfworld's AlfredTWEnv;
- the same over processes (AsyncBatchEnv, one a game), which is what AlfredTWEnv.init_env makes.
Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from alfworld_games.files import load_packed  # noqa: E402

from rlanything.domains.alfworld.game import parse_game  # noqa: E402
from rlanything.domains.alfworld.library import PackedGame  # noqa: E402
from rlanything.domains.alfworld.simulator import Episode  # noqa: E402

CONCURRENT = 256
BATCH = 8  # games that TextWorld plays at once: as many processes in the asynchronous batch
MAX_MEMORY_MB = 300


@dataclass(frozen=True)
class Timing:
    """`load_s`: seconds until one game can be played; `steps_per_s`: over all games together."""

    load_s: float
    steps_per_s: float


def memory_mb() -> float:
    """The process's largest resident memory so far [MB]."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def time_simulator(games: list[PackedGame], seconds: float, list_commands: bool) -> Timing:
    """Random walks over all games in turn. Without `list_commands` the walk repeats the walkthroughs instead."""
    start = time.perf_counter()
    episodes = [Episode(parse_game(game.data, game.path)) for game in games]
    for episode in episodes:
        episode.reset()
    load_s = (time.perf_counter() - start) / len(games)
    rng, steps, start = random.Random(0), 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for episode in episodes:
            if list_commands:
                episode.step(rng.choice(episode.admissible))
                steps += 1
            else:
                episode.reset()
                for command in episode.game.walkthrough:
                    episode.step(command)
                    steps += 1
    return Timing(load_s, steps / (time.perf_counter() - start))


def time_textworld(files: list[str], seconds: float, asynchronous: bool) -> Timing:
    """Random walks in TextWorld's batch environment; games that were won no longer count."""
    import textworld.gym
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos

    infos = textworld.EnvInfos(won=True, admissible_commands=True, extras=["gamefile"])
    env_id = textworld.gym.register_games(
        files, infos, batch_size=len(files), asynchronous=asynchronous, wrappers=[AlfredDemangler, AlfredInfos]
    )
    env = textworld.gym.make(env_id)
    start = time.perf_counter()
    _, info = env.reset()
    load_s = (time.perf_counter() - start) / len(files)
    rng, steps, done, start = random.Random(0), 0, [False] * len(files), time.perf_counter()
    while time.perf_counter() - start < seconds and not all(done):
        steps += done.count(False)
        _, _, done, info = env.step([rng.choice(commands) for commands in info["admissible_commands"]])
        done = list(done)
    timing = Timing(load_s, steps / (time.perf_counter() - start))
    env.close()
    return timing


def concurrent_memory(path: Path) -> float:
    """Memory of this process with 256 episodes under way, each in a game of its own where there are so many [MB]."""
    games = [parse_game(game.data, game.path) for game in islice(load_packed(path), CONCURRENT)]
    episodes = [Episode(games[i % len(games)]) for i in range(CONCURRENT)]
    rng = random.Random(0)
    for episode in episodes:
        episode.reset()
        for _ in range(20):
            episode.step(rng.choice(episode.admissible))
    return memory_mb()


def _write(games: list[PackedGame], folder: Path) -> list[str]:
    files = []
    for number, game in enumerate(games):
        file = folder / str(number) / "game.tw-pddl"
        file.parent.mkdir()
        file.write_text(json.dumps(game.data))
        files.append(str(file))
    return files


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=Path, required=True, metavar="PATH", help="a packed .jsonl.xz of games")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each side plays (default: 20)")
    options = parser.parse_args()
    # First, while the process holds nothing else: the largest memory never falls again.
    megabytes = concurrent_memory(options.games)
    print(
        f"{CONCURRENT} concurrent episodes: {megabytes:.0f} MB, all of the process (target < {MAX_MEMORY_MB})",
        flush=True,
    )
    games = list(islice(load_packed(options.games), BATCH))
    quick = time_simulator(games, options.seconds, list_commands=False)
    print(f"simulator, walkthroughs, no listing: {1e3 / quick.steps_per_s:.4f} ms a step", flush=True)
    simulator = time_simulator(games, options.seconds, list_commands=True)
    _report("simulator", simulator, simulator)
    with tempfile.TemporaryDirectory() as folder:
        files = _write(games, Path(folder))
        sides: list[tuple[str, Callable[[], Timing]]] = [
            ("TextWorld, in-process batch", lambda: time_textworld(files, options.seconds, asynchronous=False)),
            (f"TextWorld, AsyncBatchEnv ({BATCH} processes)", lambda: time_textworld(files, options.seconds, True)),
        ]
        for name, measure in sides:
            try:
                _report(name, measure(), simulator)
            except ImportError as error:
                print(f'{name}: not measured, {error}; pip install "textworld[pddl]" alfworld', file=sys.stderr)
                return 1
    return 0


def _report(name: str, timing: Timing, simulator: Timing) -> None:
    ratio: Any = simulator.steps_per_s / timing.steps_per_s
    loads = timing.load_s / simulator.load_s
    line = f"{timing.steps_per_s:,.1f} steps/s, {timing.load_s * 1e3:,.1f} ms to load a game"
    print(f"{name}: {line}; the simulator is {ratio:,.0f}x as fast a step, {loads:,.0f}x a load", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
