"""The simulator gets the surprising facts of the ALFRED text domain right, and all real walkthroughs win."""

from __future__ import annotations

import random

import pytest
from shared_games import SPLITS, real_games
from tiny_rooms import random_room, room

from rlanything.domains.alfworld.game import Goal, GoalKind, parse_game
from rlanything.domains.alfworld.simulator import NOTHING_HAPPENS, Episode

RECEPTACLES = {"Desk1": "loc_1", "Drawer1": "loc_1", "Fridge1": "loc_2", "SinkBasin1": "loc_3", "Microwave1": "loc_4"}
OBJECTS = {
    "Mug1": ["Desk1"],
    "Mug2": ["Drawer1"],
    "Apple1": ["Desk1", "Fridge1"],
    "DeskLamp1": ["Desk1"],
    "Knife1": ["Desk1"],
}
TWO_MUGS = Goal(GoalKind.TWO, "Mug", "Desk")


def start(goal: Goal = TWO_MUGS, **options) -> Episode:
    episode = Episode(parse_game(room(goal, RECEPTACLES, OBJECTS, **options), "room"))
    episode.reset()
    return episode


def run(episode: Episode, *commands: str) -> str:
    feedback = ""
    for command in commands:
        assert command in episode.admissible
        feedback, _ = episode.step(command)
    return feedback


def test_first_observation_lists_the_room_and_the_task():
    episode = start()
    assert episode.reset() == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
        "a desk 1, a drawer 1, a fridge 1, a microwave 1, and a sinkbasin 1.\n\nYour task is to: do what must be done."
    )


def test_look_before_moving_sees_nothing():
    assert run(start(), "look") == "You are in the middle of a room. Looking quickly around you, you see nothing."


def test_look_shows_only_what_left_a_receptacle_of_this_place():
    episode = start()
    facing = "You are facing the desk 1, and drawer 1. Next to it, you see"
    assert run(episode, "go to desk 1", "look") == f"{facing} nothing."
    feedback = run(episode, "open drawer 1", "take mug 2 from desk 1", "move mug 2 to drawer 1", "look")
    assert feedback == f"{facing} a mug 2."


def test_examine_works_only_on_held_objects():
    episode = start()
    run(episode, "go to desk 1")
    assert episode.step("examine mug 2")[0] == NOTHING_HAPPENS
    assert "examine mug 2" not in episode.admissible
    assert run(episode, "take mug 2 from desk 1", "examine mug 2") == "There's nothing special about mug 2."


def test_object_can_be_in_two_receptacles_at_once():
    episode = start()
    run(episode, "go to desk 1", "take apple 1 from desk 1", "go to sinkbasin 1", "move apple 1 to sinkbasin 1")
    assert run(episode, "go to fridge 1", "open fridge 1").endswith("In it, you see a apple 1.")
    assert run(episode, "go to sinkbasin 1") == "You arrive at sinkbasin 1. On the sinkbasin 1, you see a apple 1."


def test_pick_two_needs_two_distinct_objects():
    goal = Goal(GoalKind.TWO, "Apple", "Desk")
    episode = start(goal)
    assert not episode.won
    run(episode, "go to desk 1", "take apple 1 from desk 1")
    assert episode.step("move apple 1 to desk 1") == ("You move the apple 1 to the desk 1.", False)


def test_pick_two_needs_both_in_the_same_receptacle():
    episode = start()
    run(episode, "go to drawer 1", "open drawer 1", "take mug 1 from drawer 1")
    assert not episode.won
    assert episode.step("move mug 1 to desk 1")[1]


@pytest.mark.parametrize("spelled", ["(receptacleType ?r SinkType)", ";(receptacleType ?r SinkType)"])
def test_cleaning_at_a_sink_depends_on_the_domain_text_of_the_game(spelled):
    data = room(TWO_MUGS, {"Desk1": "loc_1", "Sink1": "loc_1"}, {"Mug1": ["Desk1"]})
    data["pddl_domain"] = data["pddl_domain"].replace("(receptacleType ?r SinkType)", spelled)
    episode = Episode(parse_game(data, "room"))
    run(episode, "go to desk 1", "take mug 1 from desk 1")
    assert ("clean mug 1 with sink 1" in episode.admissible) == (not spelled.startswith(";"))


def test_treatments_work_on_closed_appliances_and_undo_each_other():
    episode = start()
    run(episode, "go to desk 1", "take mug 2 from desk 1", "go to microwave 1", "heat mug 2 with microwave 1")
    assert episode.step("examine mug 2")[0] == "This is a hot mug 2."
    run(episode, "go to fridge 1", "cool mug 2 with fridge 1")
    assert episode.step("examine mug 2")[0] == "This is a cold mug 2."
    run(episode, "go to sinkbasin 1", "clean mug 2 with sinkbasin 1")
    assert episode.step("examine mug 2")[0] == "This is a cool and clean mug 2."


def test_slicing_needs_a_knife_in_hand_and_the_object_here():
    episode = start()
    run(episode, "go to desk 1", "take knife 1 from desk 1")
    assert run(episode, "slice apple 1 with knife 1") == "You sliced the apple 1 with the knife 1."
    run(episode, "move knife 1 to desk 1", "take apple 1 from desk 1")
    assert episode.step("examine apple 1")[0] == "This is a sliced apple 1."


def test_lamp_turns_on_again_and_again():
    episode = start()
    assert run(episode, "go to desk 1", "use desklamp 1", "use desklamp 1") == "You turn on the desklamp 1."


def test_look_goal_needs_the_lit_lamp_at_the_agents_place():
    episode = start(Goal(GoalKind.LOOK, "Mug", None, "DeskLamp"))
    run(episode, "go to desk 1", "take mug 2 from desk 1", "use desklamp 1")
    assert episode.won
    assert not episode.step("go to fridge 1")[1]
    assert episode.step("go to drawer 1")[1]


@pytest.mark.parametrize(
    "command",
    ["", "look 1", "Look", "go to", "go to loc 1", "take mug 2 from drawer 1", "move mug 1 to desk 1", "close desk 1",
     "open desk 1", "heat mug 1 with microwave 1", "use mug 1", "take  mug 2 from desk 1", "go to desk 1"],
)  # fmt: skip
def test_a_command_that_is_not_admissible_does_nothing(command):
    episode = start()
    run(episode, "go to desk 1")
    before = episode.admissible
    assert episode.step(command) == (NOTHING_HAPPENS, False)
    assert episode.admissible == before


def test_surrounding_space_is_ignored():
    assert start().step("  inventory\n")[0] == "You are not carrying anything."


def test_exactly_the_admissible_commands_do_something():
    """The listing and the parser are separate code, so random walks check that they agree."""
    rng = random.Random(0)
    for seed in range(30):
        episode = Episode(random_room(random.Random(seed)))
        vocabulary: set[str] = set()
        for _ in range(30):
            vocabulary.update(episode.admissible)
            admissible = set(episode.admissible)
            for command in vocabulary:
                assert (episode.clone().step(command)[0] != NOTHING_HAPPENS) == (command in admissible), command
            episode.step(rng.choice(episode.admissible))


def test_clone_is_independent():
    episode = start()
    run(episode, "go to desk 1")
    copy = episode.clone()
    run(copy, "take mug 2 from desk 1", "open drawer 1")
    assert "take mug 2 from desk 1" in episode.admissible and "open drawer 1" in episode.admissible
    episode.reset()
    assert copy.step("inventory")[0] == "You are carrying: a mug 2."


def test_reset_starts_from_the_games_own_state():
    episode = start()
    first = episode.reset()
    run(episode, "go to desk 1", "take mug 2 from desk 1")
    assert episode.reset() == first and episode.step("inventory")[0] == "You are not carrying anything."


@pytest.mark.parametrize("split", SPLITS)
def test_every_shipped_walkthrough_wins_with_its_last_command_and_not_before(split):
    games = real_games(split)
    for game in games:
        episode = Episode(game)
        wins = [episode.step(command)[1] for command in game.walkthrough]
        assert wins[-1] and not any(wins[:-1]), game.source
    assert len(games) == {"valid_seen": 140, "train": 3553}[split]
