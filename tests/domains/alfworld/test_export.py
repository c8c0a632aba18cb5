"""Games on disk load again and win, and a game with a new goal shows its new task everywhere."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fast_textworld import fast_textworld
from shared_games import packed, read_game

if importlib.util.find_spec("alfworld") is None:
    pytest.skip("alfworld is missing: pip install --no-deps alfworld==0.4.2", allow_module_level=True)

from alfworld_games.files import export_games, load_packed, write_packed
from alfworld_games.floorplans import SPLITS
from alfworld_games.generator import generate_games, possible_goals

from rlanything.domains.alfworld.backend_textworld import TextWorldEpisode
from rlanything.domains.alfworld.export import regoal, write_game
from rlanything.domains.alfworld.game import parse_game
from rlanything.domains.alfworld.goals import goal_pddl, write_sentence
from rlanything.domains.alfworld.library import PackedGame
from rlanything.domains.alfworld.model import Goal, GoalKind
from rlanything.domains.alfworld.planner import plan
from rlanything.domains.alfworld.simulator import Episode
from rlanything.errors import TaskError

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def games() -> list[PackedGame]:
    return list(generate_games("train", 24, 0))


def new_goal(game: PackedGame) -> tuple[Goal, str, list[str]]:
    """Find another goal of another task type that can be won in the room: (goal, sentence, walkthrough)."""
    parsed = parse_game(game.data, game.path)
    number = int(game.path.split("/")[1].rsplit("-", 1)[1])
    for kind in GoalKind:
        for goal in possible_goals(number, kind) if kind != parsed.goal.kind else ():
            sentence = write_sentence(goal)
            commands = plan(Episode(parsed.with_goal(goal, sentence)))
            if commands and goal.object_type != parsed.goal.object_type:
                return goal, sentence, commands
    raise AssertionError(f"{game.path}: no other goal")


def play(data: dict[str, Any], source: str) -> tuple[str, bool]:
    """Play the walkthrough in the simulator: (first observation, won at the end)."""
    episode = Episode(parse_game(data, source))
    first, won = episode.reset(), False
    for command in data["walkthrough"]:
        _, won = episode.step(command)
    return first, won


def test_packed_games_come_back_as_they_were(games: list[PackedGame], tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl.xz"
    assert write_packed(path, games) == 24
    assert list(load_packed(path)) == games
    assert sorted(p.name for p in tmp_path.iterdir()) == ["template.json", "train.jsonl.xz"]


def test_equal_games_give_equal_bytes(games: list[PackedGame], tmp_path: Path) -> None:
    for name in "ab":
        write_packed(tmp_path / name / "x.jsonl.xz", iter(games))
    assert (tmp_path / "a/x.jsonl.xz").read_bytes() == (tmp_path / "b/x.jsonl.xz").read_bytes()


def test_games_of_another_grammar_are_not_packed_together(games: list[PackedGame], tmp_path: Path) -> None:
    write_packed(tmp_path / "a.jsonl.xz", games[:1])
    other = replace(games[1], data=games[1].data | {"pddl_domain": "(define (domain other))"})
    with pytest.raises(TaskError, match=r"differs from .*template\.json"):
        write_packed(tmp_path / "b.jsonl.xz", [other])
    assert not (tmp_path / "b.jsonl.xz").exists()


def test_a_failed_write_leaves_nothing_behind(games: list[PackedGame], tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        write_game(tmp_path / "game", {"grammar": ""}, games[0].traj)
    assert list(tmp_path.iterdir()) == []


def test_the_script_gives_equal_files_for_equal_arguments(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "scripts" / "generate_games.py"), "--train", "12", "--eval", "6", "--export"]
    contents = []
    for name in ("a", "b", "b"):
        out = tmp_path / name
        subprocess.run(
            [*script, "--out", str(out)],
            check=True,
            capture_output=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )
        contents.append({p.relative_to(out): p.read_bytes() for p in out.rglob("*") if p.is_file()})
    assert contents[0] == contents[1] == contents[2]
    assert len([p for p in contents[0] if p.name == "game.tw-pddl"]) == 24
    assert {p.name for p in contents[0] if len(p.parts) == 1} == {f"{s}.jsonl.xz" for s in SPLITS} | {"template.json"}


def test_exported_folders_are_laid_out_as_json_2_1_1(games: list[PackedGame], tmp_path: Path) -> None:
    assert export_games(tmp_path, games) == 24
    assert export_games(tmp_path, games) == 0
    for game in games:
        folder = tmp_path / "json_2.1.1" / game.path
        assert sorted(p.name for p in folder.iterdir()) == ["game.tw-pddl", "initial_state.pddl", "traj_data.json"]
        assert json.loads((folder / "game.tw-pddl").read_text()) == game.data
        assert json.loads((folder / "traj_data.json").read_text())["task_type"] == game.traj["task_type"]
        assert read_game(folder / "game.tw-pddl").sentence == game.annotations[0]


def test_a_regoaled_game_shows_the_new_sentence_and_never_the_old_one(games: list[PackedGame], tmp_path: Path) -> None:
    for game in games:
        goal, sentence, commands = new_goal(game)
        data, traj = regoal(game.data, game.traj, goal, sentence, commands)
        file = write_game(tmp_path / traj["task_id"], data, traj)
        first, won = play(json.loads(file.read_text()), str(file))
        assert won and first.endswith(f"Your task is to: {sentence}")
        assert game.annotations[0] != sentence
        for text in (p.read_text() for p in file.parent.iterdir()):
            assert game.annotations[0] not in text
        assert traj["pddl_params"]["object_target"] == goal.object_type and traj["task_type"] == goal.kind
        assert traj["task_id"] != game.traj["task_id"]
        assert read_game(file).goal == goal


def test_regoaling_leaves_its_source_alone_and_can_be_repeated(games: list[PackedGame]) -> None:
    game = games[0]
    before = json.dumps([game.data, game.traj])
    goal, sentence, commands = new_goal(game)
    first = regoal(game.data, game.traj, goal, sentence, commands)
    assert json.dumps([game.data, game.traj]) == before
    assert regoal(*first, goal, sentence, commands) == first


def test_a_sentence_with_quotes_survives(games: list[PackedGame], tmp_path: Path) -> None:
    goal = parse_game(games[0].data, "x").goal
    odd = r'put the "best" \g<1> thing away.'
    data, traj = regoal(games[0].data, games[0].traj, goal, odd, games[0].data["walkthrough"])
    assert parse_game(data, "x").sentence == odd
    write_packed(tmp_path / "a.jsonl.xz", [replace(games[0], data=data, traj=traj)])
    assert next(load_packed(tmp_path / "a.jsonl.xz")).data == data


def test_a_game_without_a_task_is_refused(games: list[PackedGame]) -> None:
    goal = parse_game(games[0].data, "x").goal
    with pytest.raises(TaskError, match=r"found 1 \(:goal .* and 0 task sentences"):
        regoal(games[0].data | {"grammar": "grammar :: {}"}, games[0].traj, goal, "x", [])


def test_real_games_can_be_regoaled_and_packed(tmp_path: Path) -> None:
    for game in list(load_packed(packed("valid_seen")))[::7]:
        goal, sentence, commands = new_goal(game)
        data, traj = regoal(game.data, game.traj, goal, sentence, commands)
        first, won = play(data, game.path)
        assert won and first.endswith(f"Your task is to: {sentence}")
        write_packed(tmp_path / "x.jsonl.xz", [replace(game, data=data, traj=traj)])


def test_goals_are_written_as_real_games_have_them() -> None:
    checked = set()
    for game in load_packed(packed("valid_seen")):
        problem, goal = game.data["pddl_problem"], parse_game(game.data, game.path).goal
        assert goal_pddl(goal).split() == problem[problem.index("(:goal") :].split()
        checked.add(goal.kind)
    assert checked == set(GoalKind)


def test_writing_a_game_again_replaces_it(games: list[PackedGame], tmp_path: Path) -> None:
    for game in games[:2]:
        file = write_game(tmp_path / "task" / "trial", game.data, game.traj)
        assert json.loads(file.read_text()) == game.data
    assert [path.name for path in (tmp_path / "task").iterdir()] == ["trial"]


def assert_textworld_agrees(game: PackedGame) -> None:
    """Check that the walkthrough wins in TextWorld, which answers as the simulator does."""
    real, ours = TextWorldEpisode(game.data), Episode(parse_game(game.data, game.path))
    try:
        assert real.reset() == ours.reset()
        for command in game.data["walkthrough"]:
            assert real.admissible == ours.admissible, game.path
            assert real.step(command) == ours.step(command), f"{game.path}: {command}"
        assert real.won, game.path
    finally:
        real.close()


def check_in_textworld(count: int, split: str) -> None:
    """Check generated games in TextWorld, every second one also with another goal."""
    for package in ("fast_downward", "textworld"):
        pytest.importorskip(package, reason=f'{package} is missing: pip install "textworld[pddl]" and alfworld')
    with fast_textworld():
        for i, game in enumerate(generate_games(split, count, 29)):
            assert_textworld_agrees(game)
            if i % 2:
                data, traj = regoal(game.data, game.traj, *new_goal(game))
                assert_textworld_agrees(replace(game, data=data, traj=traj))


@pytest.mark.integration
def test_generated_and_regoaled_games_win_in_textworld() -> None:
    check_in_textworld(6, "train")


@pytest.mark.slow
@pytest.mark.integration
def test_sixty_generated_games_win_in_textworld() -> None:
    check_in_textworld(30, "train")
    check_in_textworld(30, "eval_out_of_distribution")
