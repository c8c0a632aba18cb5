"""The planner wins from every state, as fast as an exhaustive search, and its distance falls by one with each step."""

from __future__ import annotations

import random

import pytest
from shared_games import SPLITS, real_games
from tiny_rooms import random_room, room, shortest

from rlanything.domains.alfworld.game import Goal, GoalKind, parse_game
from rlanything.domains.alfworld.planner import distance, plan
from rlanything.domains.alfworld.progress import Progress
from rlanything.domains.alfworld.simulator import NOTHING_HAPPENS, Episode

RECEPTACLES = {"Desk1": "loc_1", "Drawer1": "loc_2", "Fridge1": "loc_3", "SinkBasin1": "loc_4", "Shelf1": "loc_5"}
CLEAN = Goal(GoalKind.CLEAN, "Mug", "Drawer")


def start(goal: Goal, objects: dict[str, list[str]], *commands: str, **options) -> Episode:
    episode = Episode(parse_game(room(goal, RECEPTACLES, objects, **options), "room"))
    for command in commands:
        assert episode.step(command)[0] != NOTHING_HAPPENS
    return episode


def wander(episode: Episode, rng: random.Random, steps: int) -> None:
    """Take random steps, every kind of command equally often, but none that wins."""
    for _ in range(steps):
        verbs = sorted({command.split()[0] for command in episode.admissible} - {"look", "help", "inventory"})
        verb = rng.choice(verbs)
        after = episode.clone()
        if not after.step(rng.choice([c for c in episode.admissible if c.startswith(verb)]))[1]:
            episode.state, episode.won = after.state, after.won


def follow(episode: Episode) -> int:
    """Carry a plan out and check the distance before every step. Returns its length."""
    commands = plan(episode)
    assert commands is not None, episode.game.source
    for done, command in enumerate(commands):
        assert not episode.won and distance(episode) == len(commands) - done, episode.game.source
        assert episode.step(command)[0] != NOTHING_HAPPENS, (episode.game.source, command)
    assert episode.won and distance(episode) == 0, episode.game.source
    return len(commands)


@pytest.mark.parametrize("split", SPLITS)
def test_every_real_game_is_won_in_no_more_steps_than_its_walkthrough(split):
    for game in real_games(split):
        assert follow(Episode(game)) <= len(game.walkthrough)


def test_wins_real_games_from_states_a_random_walk_leads_to():
    rng, games, won = random.Random(0), real_games("valid_seen"), 0
    for game in games:
        episode = Episode(game)
        wander(episode, rng, 20)
        if distance(episode) is not None:  # a walk may make a task impossible, by slicing for example
            follow(episode)
            won += 1
    assert won > 0.8 * len(games)


def check_against_exhaustive_search(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        episode = Episode(random_room(rng))
        wander(episode, rng, rng.randrange(12))
        assert distance(episode) == shortest(episode), seed


def test_distance_equals_exhaustive_search_in_small_rooms():
    check_against_exhaustive_search(range(150))


@pytest.mark.slow
def test_distance_equals_exhaustive_search_in_many_small_rooms():
    check_against_exhaustive_search(range(150, 3000))


def test_puts_down_the_wrong_object_first_and_where_it_costs_least():
    episode = start(CLEAN, {"Mug1": ["Desk1"], "Apple1": ["Shelf1"]}, "go to shelf 1")
    before = distance(episode)
    episode.step("take apple 1 from shelf 1")
    # At once, or on the way at the desk: one command more, and no detour.
    assert distance(episode) == before + 1
    assert [c for c in plan(episode) if "apple" in c] in (["move apple 1 to desk 1"], ["move apple 1 to shelf 1"])


def test_puts_the_wrong_object_only_where_it_is_accepted():
    objects = {"Mug1": ["Desk1"], "Apple1": ["Shelf1"]}
    refuses = (("Desk", "Apple"), ("Drawer", "Apple"), ("SinkBasin", "Apple"))
    episode = start(CLEAN, objects, "go to shelf 1", "take apple 1 from shelf 1", "go to desk 1", refuses=refuses)
    assert plan(episode)[:3] == ["go to shelf 1", "move apple 1 to shelf 1", "go to desk 1"]


def test_holding_what_nothing_accepts_loses_the_game():
    refuses = tuple((r, "Apple") for r in ("Desk", "Drawer", "SinkBasin", "Shelf", "Fridge"))
    episode = start(CLEAN, {"Mug1": ["Desk1"], "Apple1": ["Shelf1"]}, "go to shelf 1", refuses=refuses)
    progress = Progress(episode)
    feedback, _ = episode.step("take apple 1 from shelf 1")
    assert distance(episode) is None and plan(episode) is None
    assert progress.step("take apple 1 from shelf 1", feedback) == (-1, "makes the task impossible")


def test_does_not_clean_what_is_clean():
    walk = ["go to desk 1", "take mug 1 from desk 1", "go to sinkbasin 1", "clean mug 1 with sinkbasin 1"]
    episode = start(CLEAN, {"Mug1": ["Desk1"]}, *walk)
    assert plan(episode) == ["go to drawer 1", "open drawer 1", "move mug 1 to drawer 1"]


def test_heats_again_what_was_cooled():
    receptacles = RECEPTACLES | {"Microwave1": "loc_6"}
    game = parse_game(room(Goal(GoalKind.HEAT, "Mug", "Desk"), receptacles, {"Mug1": ["Shelf1"]}), "room")
    episode = Episode(game)
    for command in plan(episode)[:-2]:
        episode.step(command)
    before = distance(episode)
    episode.step("go to fridge 1")
    episode.step("cool mug 1 with fridge 1")
    assert (before, plan(episode)[:2]) == (2, ["go to microwave 1", "heat mug 1 with microwave 1"])


def test_takes_what_is_already_there_out_to_clean_it():
    episode = start(CLEAN, {"Mug1": ["Drawer1"]})
    assert plan(episode) == [
        "go to drawer 1", "open drawer 1", "take mug 1 from drawer 1", "go to sinkbasin 1",
        "clean mug 1 with sinkbasin 1", "go to drawer 1", "move mug 1 to drawer 1",
    ]  # fmt: skip


def test_cleaning_wins_at_once_where_the_object_is_also_at_its_goal():
    episode = start(CLEAN, {"Mug1": ["Desk1", "Drawer1"]})
    assert plan(episode)[-1] == "clean mug 1 with sinkbasin 1"
    follow(episode)


def test_pick_two_keeps_the_one_that_is_there():
    episode = start(Goal(GoalKind.TWO, "Mug", "Shelf"), {"Mug1": ["Shelf1"], "Mug2": ["Desk1"]})
    assert plan(episode) == ["go to desk 1", "take mug 1 from desk 1", "go to shelf 1", "move mug 1 to shelf 1"]


def test_pick_two_with_one_object_is_lost():
    assert plan(start(Goal(GoalKind.TWO, "Mug", "Shelf"), {"Mug1": ["Shelf1"]})) is None


def test_lamp_that_is_on_is_only_visited():
    goal = Goal(GoalKind.LOOK, "Mug", None, "DeskLamp")
    episode = start(goal, {"Mug1": ["Shelf1"], "DeskLamp1": ["Desk1"]}, "go to desk 1", "use desklamp 1")
    assert plan(episode) == ["go to shelf 1", "take mug 1 from shelf 1", "go to desk 1"]


def test_plan_is_the_same_every_time():
    for game in real_games("valid_seen")[:20]:
        assert plan(Episode(game)) == plan(Episode(game))


def labels(episode: Episode, *commands: str) -> list[tuple[int, str]]:
    progress = Progress(episode)
    return [progress.step(command, episode.step(command)[0]) for command in commands]


def test_a_step_is_labelled_by_what_it_does_to_the_shortest_plan():
    take, back = "take mug 1 from desk 1", "move mug 1 to desk 1"
    assert labels(start(CLEAN, {"Mug1": ["Desk1"]}), "go to desk 1", take, back, take, "look", "fly") == [
        (1, "looks at a new place"),
        (1, "closer to the goal"),
        (-1, "undoes progress"),
        (1, "closer to the goal"),
        (-1, "no progress"),
        (-1, "does nothing"),
    ]


def test_a_search_is_labelled_by_what_was_seen_and_not_by_what_lies_hidden():
    # While the fridge with the mug is closed, the planner would call leaving it a loss and coming back a gain.
    there_and_back = ("go to fridge 1", "go to desk 1", "go to fridge 1", "go to desk 1", "go to fridge 1")
    found = labels(start(CLEAN, {"Mug1": ["Fridge1"]}), *there_and_back, "open fridge 1", "go to shelf 1")
    # After it was opened the mug has been seen, so leaving is a loss.
    assert [label for label, _ in found] == [1, 1, -1, -1, -1, 1, -1]
