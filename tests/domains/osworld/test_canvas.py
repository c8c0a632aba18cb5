"""The drawn desktop: its solutions solve, its verifiers tell right from wrong, its picture shows its state."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from PIL import Image

from rlanything.domains.osworld.actions import Action
from rlanything.domains.osworld.canvas import words
from rlanything.domains.osworld.canvas.acting import perform
from rlanything.domains.osworld.canvas.desk import HEIGHT, WIDTH, Desk, Kind
from rlanything.domains.osworld.canvas.drawing import draw, png
from rlanything.domains.osworld.canvas.goals import Goal, instruction
from rlanything.domains.osworld.canvas.layout import on_top
from rlanything.domains.osworld.canvas.solver import GRID, LONGEST, distance, solve
from rlanything.domains.osworld.canvas.tasks import LEVELS, Family, Verifier, make_family


def families(level: str, num: int = 60, unseen: bool = False) -> list[Family]:
    return [make_family(f"test{i}", level, 0.2, unseen) for i in range(num)]


def solved(desk: Desk, verifier: Verifier) -> Desk:
    """The desktop after the scripted solution."""
    desk = desk.clone()
    for _ in range(30):
        move = solve(verifier.goals, verifier.feasible, desk)
        if move.action.kind == "terminate":
            assert move.action.status == ("success" if verifier.feasible else "failure")
            return desk
        assert perform(desk, move.action), f"{move} hits nothing"
    raise AssertionError(f"no end: {instruction(verifier.goals)}")


@pytest.mark.parametrize("level", LEVELS)
def test_the_solution_solves_every_task_and_an_untouched_desktop_none(level: str) -> None:
    for family in families(level):
        for verifier in family.verifiers:
            if verifier.feasible:
                assert not any(goal.holds(family.desk) for goal in verifier.goals)
                assert all(goal.holds(solved(family.desk, verifier)) for goal in verifier.goals)
            else:
                solved(family.desk, verifier)


def test_solving_one_verifier_of_a_family_does_not_solve_a_harder_one() -> None:
    for family in families("middle"):
        for one in family.verifiers:
            after = solved(family.desk, one)
            for other in family.verifiers:
                if one.feasible and other.feasible and not set(other.goals) <= set(one.goals):
                    assert not all(goal.holds(after) for goal in other.goals) or _implied(one, other)


def _implied(one: Verifier, other: Verifier) -> bool:
    """A goal can hold on the way: who changes a setting has Settings open."""
    left = [goal for goal in other.goals if goal not in one.goals]
    return all(goal.kind in ("start", "open") for goal in left)


def test_every_move_of_the_solution_shortens_the_way() -> None:
    for family in families("hard", 30):
        for verifier in family.verifiers:
            desk, left = family.desk.clone(), distance(verifier.goals, verifier.feasible, family.desk)
            while left > 1:
                perform(desk, solve(verifier.goals, verifier.feasible, desk).action)
                assert distance(verifier.goals, verifier.feasible, desk) == left - 1
                left -= 1


def test_any_actions_leave_a_desktop_that_can_be_drawn_and_solved() -> None:
    draw_of = random.Random(0)
    kinds = ("left_click", "double_click", "mouse_move", "left_click_drag", "right_click")
    for family in families("middle", 40):
        desk = family.desk.clone()
        for _ in range(40):
            at = (draw_of.randrange(1000), draw_of.randrange(1000))
            typed = Action(kind="type", text=draw_of.choice(["anna", "é😀", "x" * 50]))
            key = Action(kind="key", keys=(draw_of.choice(["enter", "escape", "delete", "a"]),))
            scroll = Action(kind="scroll", pixels=draw_of.choice([-5, 5]))
            click = Action(kind=draw_of.choice(kinds), coordinate=at)
            perform(desk, draw_of.choice([click, click, click, typed, key, scroll]))
            assert draw(desk).pixels.shape == (HEIGHT, WIDTH, 3)
            for verifier in family.verifiers:
                distance(verifier.goals, verifier.feasible, desk)


def test_a_clone_is_independent() -> None:
    family = make_family("clone", "middle", 0.0)
    before = draw(family.desk).pixels
    for verifier in family.verifiers:
        solved(family.desk, verifier)
    assert np.array_equal(before, draw(family.desk).pixels)


def test_the_picture_shows_the_state_and_is_a_png() -> None:
    family = make_family("png", "easy", 0.0)
    picture = draw(family.desk)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png(picture))).convert("RGB")), picture.pixels)
    desk = family.desk.clone()
    desk.program, desk.tab = "Settings", "Network"
    shown = [widget for widget in on_top(desk) if widget.kind is Kind.SWITCH]
    for widget in shown:
        before = draw(desk).pixels
        desk.switched[widget.name] = not desk.switched[widget.name]
        changed = np.argwhere((draw(desk).pixels != before).any(-1))
        assert len(changed) and all(widget.covers(x, y) for y, x in changed)


def test_families_are_the_same_for_the_same_seed_and_others_for_others() -> None:
    first, again, other = (make_family(seed, "middle", 0.1) for seed in ("a", "a", "b"))
    assert first.verifiers == again.verifiers and np.array_equal(draw(first.desk).pixels, draw(again.desk).pixels)
    assert first.verifiers != other.verifiers


def test_no_other_desktop_looks_as_an_unseen_one_does() -> None:
    """Background, order of tabs, order of buttons: each is one that training never shows."""
    seen, unseen = ([family.desk for family in families("easy", 60, unseen)] for unseen in (False, True))
    for look, num_seen, num_unseen in (
        (lambda desk: desk.look.background, 4, 1),
        (lambda desk: tuple(desk.tab_order), 4, 2),
        (lambda desk: tuple(desk.toolbar), 1, 1),
    ):
        known, new = set(map(look, seen)), set(map(look, unseen))
        assert not known & new and (len(known), len(new)) == (num_seen, num_unseen)


def test_unseen_families_ask_for_held_out_words_and_the_others_never_do() -> None:
    for unseen in (False, True):
        made = families("middle", unseen=unseen)
        goals = [goal for family in made for verifier in family.verifiers for goal in verifier.goals]
        held_out = [bool(goal.asks_for & words.HELD_OUT) for goal in goals]
        assert (sum(held_out) > len(goals) / 3) if unseen else not any(held_out)
        for goal, found in zip(goals, held_out, strict=True):
            without = goal.kind == "start" or goal.name in (words.THEME, words.SIZE)  # they have no such words
            assert found is unseen or without


def test_coordinates_of_solutions_are_on_the_grid_and_within_their_widgets() -> None:
    for family in families("middle", 30):
        for widget in on_top(family.desk):
            moves = solve(family.verifiers[0].goals, True, family.desk).action.coordinate
            assert moves is None or all(v % GRID == 0 for v in moves)
            assert 0 <= widget.x < WIDTH and 0 <= widget.y < HEIGHT


def test_goals_in_words() -> None:
    assert instruction([Goal("set", "Wi-Fi", False), Goal("set", "Bass", 0)]) == "turn off Wi-Fi and set Bass to 0"
    form = Goal("form", entries=(("Code", "1234"), ("Name", "anna")))
    assert form.say() == "enter 1234 as Code and anna as Name and press OK"
    assert form.asks_for == {"Code", "1234", "Name", "anna"}


def test_who_renames_a_file_has_not_deleted_it_and_can_no_longer() -> None:
    desk = make_family("spoil", "easy", 0.0).desk.clone()
    goal = Goal("delete", desk.files[0])
    desk.files[0] = "other"
    assert not goal.holds(desk) and distance((goal,), True, desk) == LONGEST


def test_another_file_that_gets_the_new_name_is_not_the_renamed_one() -> None:
    desk = make_family("spoil", "easy", 0.0).desk.clone()
    first, other = desk.files[:2]
    new, later = [file for file in words.FILES if file not in desk.files][:2]
    rename, delete, read = Goal("rename", first, new), Goal("delete", first), Goal("open", first)

    def after(*goals: Goal) -> Desk:
        tried = desk.clone()
        for wanted in goals:
            for _ in range(distance((wanted,), True, tried) - 1):
                perform(tried, solve((wanted,), True, tried).action)
        return tried

    away = Goal("rename", first, later)
    assert rename.holds(after(rename)) and rename.holds(after(away, Goal("rename", later, new)))
    swapped = after(delete, Goal("rename", other, new))
    assert new in swapped.files and not rename.holds(swapped)
    named = after(away, Goal("rename", other, first))
    assert first in named.files and not read.holds(named)
    perform(named, solve((read,), True, named).action)
    taken = after(Goal("rename", other, first))  # the name of a file that is there
    assert taken.files == desk.files
    assert delete.holds(after(away, Goal("delete", later))) and read.holds(after(away, Goal("open", later)))
