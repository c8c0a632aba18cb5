"""The simulator answers as the real TextWorld: same feedback, admissible commands and win flag at every step.

The tests walk at random through real and generated games. A third of the steps follow the planner, which leads to
rare commands (heat, clean, slice, use), and some commands are not admissible. tests/fast_textworld.py speeds TextWorld
up by memoisation alone. Needs textworld[pddl] and alfworld.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alfworld_games.files import load_packed
from shared_games import packed

from rlanything.domains.alfworld.backend_textworld import TextWorldEnv, TextWorldEpisode, TextWorldMissing
from rlanything.domains.alfworld.env import SimulatorEnv
from rlanything.domains.alfworld.game import parse_game
from rlanything.domains.alfworld.planner import plan
from rlanything.domains.alfworld.simulator import Episode

sys.path.insert(0, str(Path(__file__).parents[2]))
from fast_textworld import fast_textworld  # noqa: E402

STEPS = 40
INADMISSIBLE = ("", "look 1", "Look", "go to", "examine", "take mug 1 from desk 1", "use desklamp 1", "wait")
# Weights of verbs; any other verb weighs 4. Commands that change nothing are drawn rarely.
WEIGHTS = {"help": 0.2, "inventory": 0.3, "look": 1.0, "examine": 1.0, "go": 2.0, "close": 1.0}


@pytest.fixture
def installed() -> None:
    for package in ("fast_downward", "textworld", "alfworld"):
        pytest.importorskip(package, reason=f'{package} is missing: pip install "textworld[pddl]" and alfworld')


@pytest.fixture
def fast(installed: None) -> Iterator[None]:
    with fast_textworld():
        yield


def next_command(episode: Episode, seen: set[str], rng: random.Random) -> str:
    """Draw a command: the planner's (1/3), one that is inadmissible or was seen earlier (1/10), or any by `WEIGHTS`."""
    draw = rng.random()
    if draw < 0.1:
        return rng.choice([*INADMISSIBLE, *sorted(seen)])
    commands = plan(episode) if draw < 0.43 else None
    if commands:
        return commands[0]
    admissible = episode.admissible
    verbs = sorted({command.split()[0] for command in admissible})
    verb = rng.choices(verbs, [WEIGHTS.get(verb, 4.0) for verb in verbs])[0]
    return rng.choice([command for command in admissible if command.startswith(verb)])


def differences(data: dict[str, Any], source: str, rng: random.Random, verbs: Counter[str]) -> list[str]:
    """List the differences over one random walk. `verbs` counts the commands taken."""
    oracle, episode = TextWorldEpisode(data), Episode(parse_game(data, source))
    pairs: list[tuple[str, Any, Any]] = [("reset", oracle.reset(), episode.reset())]
    seen: set[str] = set()
    for _ in range(STEPS):
        pairs.append(("admissible", oracle.admissible, episode.admissible))
        seen.update(episode.admissible)
        command = next_command(episode, seen, rng)
        verbs[command.split()[0] if command else ""] += 1
        pairs.append((command, oracle.step(command), episode.step(command)))
    oracle.close()
    return [f"{source}: {what}: TextWorld {a!r}, simulator {b!r}" for what, a, b in pairs if a != b]


def compare(games: list[tuple[str, dict[str, Any]]], capsys: pytest.CaptureFixture[str]) -> None:
    rng, verbs = random.Random(7), Counter[str]()
    found = [line for source, data in games for line in differences(data, source, rng, verbs)]
    with capsys.disabled():
        kinds = dict(verbs.most_common())
        print(f"\n{len(games)} games, {sum(verbs.values())} steps, {len(found)} differences; {kinds}")
    assert not found, "\n".join(found[:10])
    assert len(verbs) > 8, "the walk took too few kinds of commands to show anything"


def real(number: int) -> list[tuple[str, dict[str, Any]]]:
    """Pick `number` real games, spread evenly over both splits."""
    games = []
    for split, size, share in (("valid_seen", 140, number // 3), ("train", 3553, number - number // 3)):
        stride = size // share
        entries = enumerate(load_packed(packed(split)))
        games += [(entry.path, entry.data) for i, entry in entries if i % stride == 0][:share]
    return games


def generated(number: int) -> list[tuple[str, dict[str, Any]]]:
    from alfworld_games.generator import generate_games  # needs alfworld

    return [(game.path, game.data) for game in generate_games("train", number, seed=3)]


@pytest.mark.slow
def test_real_games_play_as_in_textworld(fast, capsys):
    compare(real(9), capsys)


def test_generated_games_play_as_in_textworld(fast, capsys):
    compare(generated(6), capsys)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_150_real_games_play_as_in_textworld(fast, capsys):
    compare(real(150), capsys)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_60_generated_games_play_as_in_textworld(fast, capsys):
    compare(generated(60), capsys)


@pytest.mark.slow
def test_speeding_textworld_up_changes_none_of_its_answers(installed):
    source, data = real(3)[1]
    commands = ["look", *parse_game(data, source).walkthrough, "inventory", "wait", "help"]

    def answers() -> list[Any]:
        oracle = TextWorldEpisode(data)
        return [oracle.reset(), *((oracle.admissible, oracle.step(command)) for command in commands)]

    with fast_textworld():
        fast = answers()
    assert fast == answers()


def test_textworld_backend_gives_the_loop_the_same_observations_and_labels(fast):
    source, data = real(3)[0]
    game = parse_game(data, source)

    async def observations(env: TextWorldEnv | SimulatorEnv) -> list[Any]:
        seen = [await env.reset()]
        for command in (None, "look", *game.walkthrough):
            seen.append(await env.step(command))
        await env.close()
        return seen

    theirs = asyncio.run(observations(TextWorldEnv(data, game)))
    assert theirs == asyncio.run(observations(SimulatorEnv(game)))
    assert theirs[-1].success and theirs[-1].label == 1 and theirs[1].invalid


def test_a_call_that_hangs_keeps_neither_the_event_loop_nor_the_process():
    code = (
        "import asyncio, time\n"
        "from rlanything.processes.threads import DaemonThread\n"
        "async def main():\n"
        "    assert await DaemonThread().call(abs, -1) == 1\n"
        "    async with asyncio.timeout(0.1):\n"
        "        await DaemonThread().call(time.sleep, 600)\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr.splitlines()[-1] == "TimeoutError", ended.stderr


def test_missing_package_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fast_downward", None)
    with pytest.raises(TextWorldMissing, match=r"'fast_downward'.*pip install \"textworld\[pddl\]"):
        TextWorldEpisode({})
