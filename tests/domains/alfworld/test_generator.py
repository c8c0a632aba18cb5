"""Generated games can be won, are plausible, differ, repeat by their seed, and train on no held-out floor plan."""

from __future__ import annotations

import importlib.util
import itertools
import os
import random
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from shared_games import packed

if importlib.util.find_spec("alfworld") is None:
    pytest.skip("alfworld is missing: pip install --no-deps alfworld==0.4.2", allow_module_level=True)

from alfworld_games import floorplans
from alfworld_games.floorplans import PLACEMENT_FILE, SPLITS, floor_plan, floor_plan_numbers, placement
from alfworld_games.generator import GameKey, compose, generate_games, possible_goals
from alfworld_games.scenes import PRESETS, Difficulty

from rlanything.domains.alfworld.game import parse_game
from rlanything.domains.alfworld.goals import (
    TEMPLATES,
    AlfworldMissing,
    package_file,
    package_folder,
    package_module,
    write_sentence,
)
from rlanything.domains.alfworld.library import PackedGame
from rlanything.domains.alfworld.model import GoalKind
from rlanything.domains.alfworld.simulator import Episode

ROOT = Path(__file__).parents[3]
ALL_NUMBERS = [n for numbers in package_module("constants").SCENE_TYPE.values() for n in numbers]


def assert_walkthrough_wins(game: PackedGame) -> None:
    parsed = parse_game(game.data, game.path)
    episode = Episode(parsed)
    assert not episode.won, f"{game.path} is won before it starts"
    assert parsed.sentence in [write_sentence(parsed.goal, v) for v in (0, 1)]
    for command in game.data["walkthrough"]:
        assert command in episode.admissible, f"{game.path}: {command!r}"
        _, won = episode.step(command)
    assert won, f"{game.path}: the walkthrough does not win"


def started_in_closed(game: PackedGame) -> float:
    """Return the share of the target objects that start in a closed container."""
    parsed = parse_game(game.data, game.path)
    targets = [o for o in parsed.objects if o.type == parsed.goal.object_type]
    return statistics.mean(any(r.openable for r in parsed.places(o)) for o in targets)


@pytest.mark.parametrize("kind", GoalKind)
def test_every_floor_plan_that_allows_a_task_type_yields_games_whose_walkthrough_wins(kind: GoalKind) -> None:
    numbers = [n for n in ALL_NUMBERS if possible_goals(n, kind)]
    assert len(numbers) >= 20
    for number in numbers:
        rng = random.Random(number)
        made = next(filter(None, (compose(kind, number, "train", rng, Difficulty()) for _ in range(10))), None)
        assert made is not None, f"floor plan {number} yields no {kind}"
        assert made[0].traj["scene"]["scene_num"] == number
        assert_walkthrough_wins(made[0])


def test_every_floor_plan_can_host_a_game() -> None:
    assert len(ALL_NUMBERS) == 120
    assert all(any(possible_goals(n, kind) for kind in GoalKind) for n in ALL_NUMBERS)


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_is_balanced_over_task_types_and_free_of_duplicates(split: str) -> None:
    taken: set[GameKey] = set()
    games = list(generate_games(split, 240, 3, taken=taken))
    assert len(taken) == len(games) == 240 == len({g.path for g in games})
    types = [g.traj["task_type"] for g in games]
    assert {types.count(kind) for kind in GoalKind} == {40}
    contents = {(g.traj["scene"]["scene_num"], g.data["pddl_problem"].split(":init")[1]) for g in games}
    assert len(contents) == 240


def test_floor_plans_of_one_task_type_are_used_evenly() -> None:
    games = [g for g in generate_games("train", 600, 5) if g.traj["task_type"] == GoalKind.TWO]
    visits = [g.traj["scene"]["scene_num"] for g in games]
    assert (
        max(visits.count(n) for n in set(visits)) <= 3
    )  # 100 games over 96 floor plans; a rejected scene counts as a visit


def test_evaluation_games_differ_from_training_games() -> None:
    taken: set[GameKey] = set()
    train = list(generate_games("train", 120, 0, taken=taken))
    count = len(taken)
    seen = list(generate_games("eval_in_distribution", 30, 0, taken=taken))
    assert count == len(train) and len(taken) == count + len(seen)


def test_held_out_floor_plans_are_never_trained_on() -> None:
    held_out = set(package_module("constants").TEST_SCENE_NUMBERS)
    assert held_out == set(floor_plan_numbers("eval_out_of_distribution"))
    assert set(floor_plan_numbers("train")) == set(floor_plan_numbers("eval_in_distribution"))
    assert held_out | set(floor_plan_numbers("train")) == set(ALL_NUMBERS)
    for split in SPLITS:
        visited = {g.traj["scene"]["scene_num"] for g in generate_games(split, 120, 1)}
        assert visited <= held_out if split == "eval_out_of_distribution" else not visited & held_out


def test_the_seed_decides_the_games() -> None:
    first, same, other = (list(generate_games("train", 30, seed)) for seed in (7, 7, 8))
    assert first == same
    assert not {g.data["pddl_problem"] for g in first} & {g.data["pddl_problem"] for g in other}


def test_games_do_not_depend_on_how_many_are_asked_for() -> None:
    assert list(generate_games("train", 10, 2)) == list(itertools.islice(generate_games("train", 50, 2), 10))


def test_harder_games_are_longer_hide_more_and_distract_more() -> None:
    length, hidden, objects, spare = [], [], [], []
    for level in (0.0, 0.5, 1.0):
        games = list(generate_games("train", 150, 11, Difficulty.at(level)))
        length.append(statistics.mean(len(g.data["walkthrough"]) for g in games))
        hidden.append(statistics.mean(started_in_closed(g) for g in games))
        objects.append(statistics.mean(g.data["pddl_problem"].count("(objectType ") for g in games))
        spare.append(statistics.mean(g.data["pddl_problem"].count(f" {target(g)}Type)") for g in games))
    assert length[0] < length[1] < length[2]
    assert 2 * hidden[0] < hidden[1] and 2 * hidden[1] < hidden[2]
    assert objects[0] < objects[1] < objects[2]
    assert spare[0] > spare[1] > spare[2]


def target(game: PackedGame) -> str:
    return str(game.traj["pddl_params"]["object_target"])


def test_presets_are_points_of_the_continuous_scale() -> None:
    assert PRESETS["medium"] == Difficulty() == Difficulty.at(0.5)
    with pytest.raises(ValueError, match="level: found 1.5"):
        Difficulty.at(1.5)
    with pytest.raises(ValueError, match="hidden: found -1"):
        Difficulty(hidden=-1.0)


def test_rare_goals_come_up_only_where_asked_for() -> None:
    def usual(exponent: float) -> float:
        games = generate_games("train", 120, 13, Difficulty(goal_exponent=exponent))
        goals = [(g.traj["scene"]["scene_num"], parse_game(g.data, g.path).goal) for g in games]
        return statistics.mean(possible_goals(n, goal.kind)[goal] >= 1 for n, goal in goals)

    assert usual(1.0) > 0.9 > usual(0.0)


def test_a_treated_object_must_be_put_somewhere_to_win() -> None:
    for game in generate_games("train", 150, 17):
        if game.traj["task_type"] != GoalKind.LOOK:
            assert game.data["walkthrough"][-1].startswith("move "), game.path


def test_every_split_has_games_of_every_type_in_folders_named_after_them() -> None:
    for split in SPLITS:
        for kind, game in zip(GoalKind, generate_games(split, len(GoalKind), 0), strict=True):
            assert game.path.startswith(f"{split}/{kind}-")
            assert_walkthrough_wins(game)


def test_sentences_are_those_of_alfworlds_goal_library() -> None:
    library = package_module("goal_library").gdict
    for kind in GoalKind:
        ours = [t.format(o="{obj}", r="{toggle}" if kind is GoalKind.LOOK else "{recep}") for t in TEMPLATES[kind]]
        assert ours == [t + "." for t in library[kind]["templates"]]


def test_problems_use_only_what_they_declare_as_the_domain_types_it() -> None:
    """Check what Fast Downward's translator would reject, without that package."""
    for game in generate_games("train", 60, 31):
        domain, problem = game.data["pddl_domain"], game.data["pddl_problem"]
        predicates = domain[domain.index("(:predicates") : domain.index("(:functions")]
        signatures = {
            name.lower(): re.findall(r"- (\w+)", rest) for name, rest in re.findall(r"\((\w+) ([^()]*)\)", predicates)
        }
        init, goal = problem.index("(:init"), problem.index("(:goal")
        declared = dict(re.findall(r"(\S+) - (\w+)", problem[:init]))
        for name, *args in (fact.split() for fact in re.findall(r"\(([^()]+)\)", problem[init:goal])):
            assert [declared.get(a) for a in args] == signatures[name.lower()], f"{game.path}: {name} {args}"
        assert set(re.findall(r"\w+Type\b(?=\))", problem[goal:])) <= set(declared)
        assert problem.count("(") == problem.count(")")


def test_object_ids_and_names_look_like_the_real_ones() -> None:
    coordinate = r"_bar__(?:plus|minus)_\d\d_dot_\d\d"
    shape = re.compile(rf"[A-Za-z]+(?:{coordinate}|_bar_00_dot_00){{3}}(?:_bar_(?:Sink|Bathtub)Basin)?")
    for game in generate_games("train", 30, 19):
        declared = re.findall(r"^\s+(\S+_bar_\S+) - (?:object|receptacle)$", game.data["pddl_problem"], re.M)
        assert len(declared) == len(set(declared)) > 15
        assert all(shape.fullmatch(name) for name in declared)
        parsed = parse_game(game.data, game.path)
        mugs = [o for o in parsed.objects if o.type == "Mug"]
        assert [o.name for o in sorted(mugs, key=lambda o: o.id)] == [f"mug {n}" for n in range(len(mugs), 0, -1)]


def test_the_agent_starts_where_no_receptacle_is_in_reach() -> None:
    for game in generate_games("train", 60, 23):
        parsed = parse_game(game.data, game.path)
        assert parsed.initial.location not in parsed.at_location


def test_placement_table_speaks_of_alfworlds_own_types() -> None:
    constants, table = package_module("constants"), placement()
    known = set(constants.OBJECTS) | {"floor"}
    used = set(table["copies"]) | set(table["capacity"]) | set(table["shape"])
    for room, rates in table["places"].items():
        assert room in constants.SCENE_TYPE
        used |= set(rates) | {where for row in rates.values() for where in row}
    for kind, goals in table["goals"].items():
        assert kind in list(GoalKind)
        used |= set(goals) | {where for row in goals.values() for where in row}
    used |= {kind for rows in table["fixtures"].values() for kind in rows}
    assert used <= known, used - known
    assert PLACEMENT_FILE.stat().st_size < 60_000


@pytest.mark.slow
def test_the_placement_table_is_what_its_script_derives(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "derive_placement.py"), str(packed("train"))]
    subprocess.run(
        [*command, "--out", str(tmp_path / "p.json")],
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    assert (tmp_path / "p.json").read_bytes() == PLACEMENT_FILE.read_bytes()


def test_floor_plans_have_the_receptacles_of_the_layout_files() -> None:
    for number in ALL_NUMBERS:
        plan = floor_plan(number)
        ids = {r.id for r in plan.receptacles}
        assert {floorplans.mangle(name) for name in floorplans.layout_receptacles(number)} <= ids
        assert len(ids) == len(plan.receptacles)


def test_a_missing_alfworld_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    package_folder.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AlfworldMissing, match=r"pip install --no-deps alfworld==0\.4\.2"):
        package_file("data", "alfred.pddl")


def test_an_unknown_split_or_floor_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="split: found 'valid'"):
        floor_plan_numbers("valid")
    with pytest.raises(ValueError, match="floor plan: found 99"):
        floor_plan(99)
