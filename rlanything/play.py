"""Play an ALFWorld task in the terminal: you read what the policy reads and get the score that it would get.

python -m rlanything.play --games data/alfworld/valid_seen.jsonl.xz --random --show-actions
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from rlanything.domains.alfworld.game import load_packed, parse_game, read_game
from rlanything.domains.alfworld.model import Game
from rlanything.domains.alfworld.planner import plan
from rlanything.domains.alfworld.prompts import user_message
from rlanything.domains.alfworld.simulator import NOTHING_HAPPENS, Episode
from rlanything.domains.base import Observation, Step, TaskError

MAX_STEPS = 40  # as many turns as rollout.max_interaction_step allows by default


def pick_game(path: Path, index: int | None) -> Game:
    """Game number `index` of a folder tree or packed file, or a random one (None). Raises TaskError."""
    if path.is_dir():
        files = sorted(path.rglob("game.tw-pddl"))
        return read_game(files[_checked(index, len(files), path)])
    if not path.exists():
        raise TaskError(
            f"{path}: no such file or folder; --games takes a folder of game.tw-pddl files (alfworld-download) "
            "or a packed .jsonl.xz (scripts/generate_games.py)"
        )
    number = _checked(index, sum(1 for _ in load_packed(path)), path)
    packed = next(islice(load_packed(path), number, None))
    return parse_game(packed.data, packed.path)


def _checked(index: int | None, count: int, path: Path) -> int:
    if count == 0:
        raise TaskError(f"{path}: holds no game; expected game.tw-pddl files below it, or a packed .jsonl.xz")
    if index is None:
        return random.randrange(count)
    if not 0 <= index < count:
        raise TaskError(f"--index {index}: {path} holds {count} games, numbered 0 to {count - 1}")
    return index


def play(
    game: Game,
    show_actions: str,
    max_steps: int,
    ask: Callable[[str], str] = input,
    say: Callable[[str], None] = print,
) -> int:
    """One episode, command by command; returns the outcome O: +1 where the task was solved, else -1.

    `show_actions` is as in the configuration (dataset.options.show_actions). `?` lists the admissible commands and
    costs no turn, `quit` or the end of the input gives up.
    """
    episode = Episode(game)
    first = Observation(episode.reset(), tuple(episode.admissible))
    steps: list[Step] = []
    shortest = plan(episode)
    while not episode.won and len(steps) < max_steps:
        shown = user_message(first, steps, "append_only", show_actions)["content"]
        say(f"\n{shown}\n")
        command = _next_command(episode, f"[{len(steps) + 1}/{max_steps}] > ", show_actions, ask, say)
        if command is None:
            break
        feedback, won = episode.step(command)
        observation = Observation(feedback, tuple(episode.admissible), won, won, feedback == NOTHING_HAPPENS)
        steps.append(Step(command, command, observation))
    if steps:
        say(f"\n{steps[-1].observation.text}")
    outcome = 1 if episode.won else -1
    best = "cannot be won" if shortest is None else f"can be won in {len(shortest)}"
    say(f"\n{'Solved' if episode.won else 'Not solved'} after {len(steps)} steps (it {best}): O = {outcome:+d}")
    return outcome


def _next_command(
    episode: Episode, prompt: str, show_actions: str, ask: Callable[[str], str], say: Callable[[str], None]
) -> str | None:
    """What the player types, a listed number replaced by its command; None where the player gives up."""
    while True:
        try:
            text = ask(prompt).strip()
        except EOFError:
            return None
        if text == "quit":
            return None
        if text == "?":
            say("\n".join(episode.admissible))
        elif show_actions == "all" and text.isdecimal() and 1 <= int(text) <= len(episode.admissible):
            return episode.admissible[int(text) - 1]
        elif text:
            return text


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 0 where an episode was played, 2 where there is no such game."""
    parser = argparse.ArgumentParser(
        prog="python -m rlanything.play",
        description="Play an ALFWorld task. A command a turn; ? lists those that do something, quit gives up.",
    )
    parser.add_argument(
        "--games", type=Path, required=True, metavar="PATH", help="a folder of game.tw-pddl files or a packed .jsonl.xz"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--index", type=int, default=0, metavar="N", help="which game, from 0 (default: 0)")
    which.add_argument("--random", action="store_true", help="a random game")
    parser.add_argument(
        "--show-actions",
        nargs="?",
        const="all",
        default="none",
        choices=["all", "here", "none"],
        help="commands that are listed: all by number (a number takes one), those that act here, or none",
    )
    parser.add_argument(
        "--max-steps",
        type=int,
        default=MAX_STEPS,
        metavar="N",
        help=f"turns until the episode ends (default: {MAX_STEPS})",
    )
    options = parser.parse_args(arguments)
    try:
        game = pick_game(options.games, None if options.random else options.index)
    except TaskError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    play(game, options.show_actions, options.max_steps)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
