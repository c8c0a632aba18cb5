"""Playing in the terminal: same texts and score as the policy gets, hints cost nothing, errors say what to do."""

from __future__ import annotations

import json

import pytest
from builders import config_of

from rlanything.errors import TaskError
from rlanything.play import play


@pytest.fixture
def games(world):
    return world.games


def session(games, lines, task="", max_step=40, **options):
    answers, said = iter(lines), []

    def ask(prompt):
        try:
            return next(answers)
        except StopIteration:
            raise EOFError from None

    score = play(config_of("alfworld", games, max_step=max_step, **options), "train", task, ask, said.append)
    return score, "\n".join(said)


@pytest.fixture
def win(games):
    from rlanything.domains.alfworld.domain import AlfworldDomain
    from rlanything.domains.alfworld.planner import plan
    from rlanything.domains.alfworld.simulator import Episode

    domain = AlfworldDomain(config_of("alfworld", games))
    return plan(Episode(domain.games.of(domain.tasks("train")[0])))


def test_solving_is_scored_and_says_so(games, win):
    score, text = session(games, win)
    assert score.success and text.endswith(f"Solved after {len(win)} turns")


def test_giving_up_the_end_of_input_and_the_last_turn_are_no_success(games, win):
    for lines, max_step in ((["quit"], 40), ([], 40), (win, len(win) - 1)):
        score, text = session(games, lines, max_step=max_step)
        assert not score.success and "Not solved after" in text


def test_a_hint_lists_commands_and_costs_no_turn(games, win):
    score, text = session(games, ["?", *win], max_step=len(win))
    assert score.success and "go to " in text and "\nhelp" in text


def test_numbers_take_listed_commands_only_if_they_are_listed(games):
    assert "You arrive at" in session(games, ["1"], show_actions="all")[1]
    assert "Nothing happens." in session(games, ["1"], show_actions="none")[1]


def test_a_task_that_the_split_lacks_is_named_with_what_there_is(games):
    with pytest.raises(TaskError, match="task=99: split train has no such task; expected an id such as .* 0 to 23"):
        session(games, [], task="99")


def test_a_task_is_found_in_the_splits_of_evaluations_too(tmp_path):
    from coding_world import rows

    (tmp_path / "held_out.json").write_text(json.dumps(rows()))
    config, said = config_of("coding", tmp_path), []
    config.evaluation.splits = ["none", "held_out"]
    play(config, which="held_out/000001", ask=lambda prompt: "quit", say=said.append)
    assert said[0].startswith("held_out/000001: ")
    with pytest.raises(TaskError, match=r"(?s)train.*none.*task=held_out/99: split held_out has no such task"):
        play(config, which="held_out/99", ask=lambda prompt: "quit", say=said.append)


def test_a_task_is_named_by_what_its_id_alone_begins_with(tmp_path):
    from coding_world import rows

    first, second, *_ = rows()
    ids = ("e0df059f-28a6", "e0df9999-1111")
    named = [{**row, "task_id": name} for row, name in zip((first, second), ids, strict=True)]
    (tmp_path / "train.json").write_text(json.dumps(named))
    said = []
    play(config_of("coding", tmp_path), which="e0df05", ask=lambda prompt: "quit", say=said.append)
    assert "e0df059f-28a6: " in said[0]
    with pytest.raises(TaskError, match="task=e0df: split train has no such task"):
        play(config_of("coding", tmp_path), which="e0df", ask=lambda prompt: "quit", say=said.append)


def test_any_domain_is_played_and_files_are_actions(tmp_path):
    from coding_world import PROBLEMS, rows

    (tmp_path / "train.json").write_text(json.dumps(rows()))
    (tmp_path / "main.py").write_text(PROBLEMS[0][1])
    lines, said = iter(["?", "@missing.py", f"@{tmp_path}/main.py"]), []
    score = play(config_of("coding", tmp_path), which="0", ask=lambda prompt: next(lines), say=said.append)
    text = "\n".join(said)
    assert score.success and score.reward == 1.0 and text.endswith("Solved after 1 turn, reward 1")
    assert PROBLEMS[0][0] in text and "does not list its actions" in text and "missing.py cannot be read" in text
