"""Games are parsed with the names that ALFWorld gives, and errors name the game."""

from __future__ import annotations

import importlib.util
import json
import lzma
from pathlib import Path

import pytest
from alfworld_games.files import load_packed
from shared_games import packed, real_games
from tiny_rooms import room

from rlanything.domains.alfworld.game import Goal, GoalKind, parse_game
from rlanything.errors import TaskError

SIMPLE = Goal(GoalKind.SIMPLE, "Mug", "Desk")
GOALS = [
    SIMPLE,
    Goal(GoalKind.TWO, "Mug", "Drawer"),
    Goal(GoalKind.CLEAN, "Mug", "Desk"),
    Goal(GoalKind.HEAT, "Mug", "Desk"),
    Goal(GoalKind.COOL, "Mug", "Desk"),
    Goal(GoalKind.LOOK, "Mug", None, "DeskLamp"),
]


def mug_room(goal: Goal = SIMPLE) -> dict:
    receptacles = {"Desk1": "loc_1", "Drawer1": "loc_1", "Drawer2": "loc_2", "SinkBasin1": "loc_3"}
    return room(goal, receptacles, {"Mug1": ["Drawer1"], "Mug2": ["Desk1", "Drawer2"], "DeskLamp1": ["Desk1"]})


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.kind.name)
def test_goal_is_read_back_from_its_pddl(goal):
    assert parse_game(mug_room(goal), "room").goal == goal


def test_kinds_and_parameters_of_real_games_equal_their_trajectories():
    for game, entry in zip(real_games("valid_seen"), load_packed(packed("valid_seen")), strict=True):
        params = entry.traj["pddl_params"]
        assert game.goal.kind == entry.traj["task_type"]
        assert game.goal.object_type == params["object_target"]
        if game.goal.kind is GoalKind.LOOK:
            assert game.goal.lamp_type == params["toggle_target"]
        else:
            assert game.goal.receptacle_type == params["parent_target"]


def test_names_are_numbered_in_descending_id_order():
    game = parse_game(mug_room(), "room")
    assert [(o.id, o.name) for o in game.objects if o.type == "Mug"] == [("mug_bar_1", "mug 2"), ("mug_bar_2", "mug 1")]


def test_basins_are_named_after_their_basin():
    names = [r.name for game in real_games("valid_seen") for r in game.receptacles if r.type == "SinkBasin"]
    assert names and all(name.startswith("sinkbasin ") for name in names)


def test_object_in_two_receptacles_is_seen_from_both():
    game = parse_game(mug_room(), "room")
    mug = game.object_named["mug 1"]
    assert [r.type for r in game.places(mug)] == ["Desk", "Drawer"]
    assert all(mug in game.contents(r) for r in game.places(mug))


def test_sentence_comes_with_and_without_its_prefix():
    game = parse_game(mug_room(), "room")
    assert (game.sentence, game.task_line) == ("do what must be done.", "Your task is to: do what must be done.")


def test_sentence_with_quotes_survives_the_grammar():
    data = mug_room()
    data["grammar"] = data["grammar"].replace("do what must be done.", 'say \\"yes\\" to: mugs.')
    assert parse_game(data, "room").sentence == 'say "yes" to: mugs.'


def test_another_goal_shares_the_room_and_drops_the_walkthrough():
    game = real_games("valid_seen")[0]
    other = game.with_goal(SIMPLE, "put a mug on desk.")
    assert other.objects is game.objects and other.initial is game.initial
    assert (other.goal, other.task_line, other.walkthrough) == (SIMPLE, "Your task is to: put a mug on desk.", ())
    assert game.walkthrough and game.goal != SIMPLE


def test_games_of_a_data_set_share_what_is_equal():
    relations = {id(game.accepts) for game in real_games("valid_seen")}
    assert len(relations) < len(real_games("valid_seen")) / 2


def test_the_packages_domain_text_lacks_the_games_sinks():
    package = importlib.util.find_spec("alfworld")
    if package is None or not package.submodule_search_locations:
        pytest.skip("alfworld is missing: pip install --no-deps alfworld==0.4.2")
    data = next(load_packed(packed("valid_seen"))).data
    domain = Path(package.submodule_search_locations[0], "data", "alfred.pddl").read_text()
    assert parse_game(data, "the games' own").sink_types == {"SinkBasin", "Sink"}
    assert parse_game(data | {"pddl_domain": domain}, "the package's").sink_types == {"SinkBasin"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grammar": None}, "grammar: found NoneType"),
        ({"pddl_problem": "(define (problem p) (:init"}, ":goal"),
        ({"grammar": 'template :: "put {o} in/on {r}"'}, "ALFWorld 0.4"),
        (
            {"pddl_problem": "(:init (inReceptacle a b) (atLocation agent1 l))(:goal (and))"},
            "no fact defines 'a'",
        ),
        ({"pddl_problem": "(:init (objectType a_bar_1 MugType))(:goal (and))"}, "atLocation"),
    ],
)
def test_corrupt_game_is_refused_by_name(change, words):
    with pytest.raises(TaskError, match="my game.*") as error:
        parse_game(mug_room() | change, "my game")
    assert words in str(error.value)


def test_goal_outside_the_six_kinds_is_refused():
    data = mug_room()
    data["pddl_problem"] = data["pddl_problem"].replace("(inReceptacle ?o ?r)", "(inReceptacle ?o ?r) (isSliced ?o)")
    with pytest.raises(TaskError, match="none of the six"):
        parse_game(data, "room")


def test_packed_file_faults_name_file_and_line(tmp_path):
    path = tmp_path / "games.jsonl.xz"
    with pytest.raises(TaskError, match="games.jsonl.xz: no such file"):
        list(load_packed(path))
    with lzma.open(path, "wt") as file:
        file.write('{"path": "a"}\n')
    with pytest.raises(TaskError, match="template.json: no such file"):
        list(load_packed(path))
    Path(tmp_path / "template.json").write_text(json.dumps({"pddl_domain": "", "grammar": "{task}"}))
    with pytest.raises(TaskError, match="line 1: not a packed game"):
        list(load_packed(path))
