"""Playing in the terminal: same text and score as the policy gets, hints cost nothing, errors say what to do."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "domains" / "alfworld"))
from tiny_rooms import room  # noqa: E402

from rlanything.domains.alfworld.game import Goal, GoalKind, parse_game  # noqa: E402
from rlanything.play import main, play  # noqa: E402

DATA = room(Goal(GoalKind.SIMPLE, "Mug", "Shelf"), {"Desk1": "loc_1", "Shelf1": "loc_2"}, {"Mug1": ["Desk1"]})
WIN = ["go to desk 1", "take mug 1 from desk 1", "go to shelf 1", "move mug 1 to shelf 1"]


def session(lines: list[str], show_actions: str = "none", max_steps: int = 40) -> tuple[int, str]:
    answers, said = iter(lines), []

    def ask(prompt: str) -> str:
        try:
            return next(answers)
        except StopIteration:
            raise EOFError from None

    outcome = play(parse_game(DATA, "room"), show_actions, max_steps, ask, said.append)
    return outcome, "\n".join(said)


def test_solving_scores_plus_one():
    outcome, text = session(WIN)
    assert outcome == 1 and text.endswith("Solved after 4 steps (it can be won in 4): O = +1")


def test_giving_up_the_end_of_input_and_the_last_turn_score_minus_one():
    assert session(["quit"])[0] == session([])[0] == session(WIN, max_steps=3)[0] == -1


def test_hint_lists_commands_and_costs_no_turn():
    outcome, text = session(["?", *WIN], max_steps=4)
    assert outcome == 1 and "go to desk 1\ngo to shelf 1\nhelp" in text


def test_numbers_take_listed_commands_only_where_they_are_listed():
    assert "You arrive at desk 1" in session(["1"], show_actions="all")[1]
    assert "Nothing happens." in session(["1"])[1]


def test_shows_what_the_policy_sees():
    text = session([], show_actions="all")[1]
    assert "Your task is to: do what must be done.\nYou are in the middle" in text and "\n1. go to desk 1" in text


def test_missing_path_empty_folder_and_wrong_index_end_with_a_clear_error(tmp_path, capsys):
    for arguments, words in (
        (["--games", str(tmp_path / "none")], "no such file or folder"),
        (["--games", str(tmp_path)], "holds no game"),
    ):
        assert main(arguments) == 2
        assert words in capsys.readouterr().err
    (tmp_path / "game.tw-pddl").write_text(json.dumps(DATA))
    assert main(["--games", str(tmp_path), "--index", "5"]) == 2
    assert "numbered 0 to 0" in capsys.readouterr().err


def test_plays_a_folder_of_game_files(tmp_path, capsys, monkeypatch):
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "game.tw-pddl").write_text(json.dumps(DATA))
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(WIN)))
    assert main(["--games", str(tmp_path), "--random"]) == 0
    assert "O = +1" in capsys.readouterr().out
