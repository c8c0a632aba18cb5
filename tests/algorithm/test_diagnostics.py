"""Figures of a step, against counts by hand."""

import math

import pytest
from builders import diagnostics, group, trajectory

from rlanything.algorithm.diagnostics import figures, tally_feedback, theorem_bound
from rlanything.algorithm.summary import Tally
from rlanything.types import Status


def test_bound_of_theorem_1():
    assert theorem_bound(1.5, 3) == pytest.approx(1 - math.exp(-3 * 0.25 / 4))
    assert theorem_bound(1.0, 3) == 0.0 and theorem_bound(0.7, 3) == 0.0


def test_diagnostics_count_votes_by_outcome_and_by_label():
    g = group(trajectory(1, [(1, 1, -1)]), trajectory(-1, [(-1, None, 1)]))
    g.trajectories[0].turns[0].label = 1
    g.trajectories[1].turns[0].label = 1
    d = diagnostics([g])
    assert d["success_rate"] == 0.5
    assert d["rm_p_plus"] == pytest.approx(2 / 3) and d["rm_p_minus"] == pytest.approx(1 / 2)
    assert d["rm_mu"] == pytest.approx(7 / 6)
    assert d["rm_bound"] == pytest.approx(1 - math.exp(-3 * (1 / 6) ** 2 / 4))
    assert d["rm_outcome_agreement"] == pytest.approx(3 / 5)
    assert d["rm_process_accuracy"] == pytest.approx(3 / 5)
    assert d["rm_unparsable_rate"] == pytest.approx(1 / 6)


def test_advantages_of_right_and_of_wrong_judgements_stand_apart():
    g = group(trajectory(1, [(1, -1), (1, 1)]))
    for turn, label in zip(g.trajectories[0].turns, (1, -1), strict=True):
        turn.label = label
    for judgement, advantage in zip(g.judgements, (0.5, -1.5, -2.0, 0.0), strict=True):
        judgement.advantage = advantage
    counted = Tally()
    tally_feedback(g, counted)
    assert {name: value for name, value in figures(counted).items() if name.startswith("rm_advantage/")} == {
        "rm_advantage/none_wrong": -2.0, "rm_advantage/progress_right": 0.5, "rm_advantage/progress_wrong": -1.5
    }  # fmt: skip
    test = group(trajectory(1, [(1,)]))
    test.trajectories[0].turns[0].label, test.judgements[0].advantage, test.judgements[0].shared = 1, 0.5, True
    tally_feedback(test, counted)
    assert figures(counted)["rm_advantage/progress_right"] == 0.5 and counted.counts["rm_advantage/progress_right"] == 1


def test_kinds_of_actions_and_times_of_phases_are_means_over_all_turns_and_episodes():
    one, other = group(trajectory(1, [(1,), (1,)]), trajectory(-1, [(1,)])), group(trajectory(1, [(1,)]))
    for turn, kind in zip([t for g in (one, other) for e in g.valid for t in e.turns], "aab", strict=False):
        turn.kind = kind  # the last turn has none
    one.trajectories[0].phases, one.trajectories[1].phases = {"reset": 3.0, "settle": 1.5}, {"reset": 6.0}
    one.figures, other.figures = {"desktops": 4.0}, {"desktops": 2.0}
    d = diagnostics([one, other])
    assert (d["action/a"], d["action/b"]) == (0.5, 0.25)
    assert (d["phase/reset"], d["phase/settle"], d["env/desktops"]) == (3.0, 0.5, 3.0)


def test_response_tokens_are_those_of_all_turns_of_an_episode():
    long, short = trajectory(1, [(), ()]), trajectory(-1, [()])
    broken = trajectory(-1, [()], status=Status.ENV_ERROR)
    long.turns[0].response_ids = [1] * 7  # 7 + 2 tokens, and 2 of the short episode; the broken one does not count
    assert diagnostics([group(long, short, broken)])["response_tokens"] == 5.5


def test_diagnostics_of_nothing_are_nan_and_not_an_error():
    assert math.isnan(diagnostics([])["success_rate"])


def test_calls_of_tools_are_counted_and_their_success():
    caller, quiet = trajectory(1, [(), (), ()]), trajectory(-1, [()])
    for turn, results in zip(caller.turns, (("ok", "exception"), ("ok",), ("ok",)), strict=True):
        turn.kind, turn.results = "call", results
    caller.turns[-1].kind = "answer"
    figures = diagnostics([group(caller, quiet)])
    assert figures["calls"] == 1.5 and figures["call_success_rate"] == pytest.approx(2 / 3)
    assert figures["call_share"] == 0.5
    assert "calls" not in diagnostics([group(quiet)])


def test_calls_that_cannot_be_read_are_failed_calls():
    # 1 of 11 calls ends well in the first episode, none of 2 in the second: 1/13, and 13 calls of 3 episodes.
    garbled, refused, quiet = trajectory(1, [()] * 11), trajectory(-1, [()]), trajectory(1, [()])
    for turn in garbled.turns:
        turn.kind, turn.results = "unreadable", ("unreadable",)
    garbled.turns[-1].kind, garbled.turns[-1].results = "call", ("ok",)
    refused.turns[0].kind, refused.turns[0].results = "call", ("unreadable", "no_calls_left")
    quiet.turns[0].kind, quiet.turns[0].results = "answer", ("ok",)
    figures = diagnostics([group(garbled, refused, quiet)])
    assert figures["calls"] == pytest.approx(13 / 3) and figures["call_success_rate"] == pytest.approx(1 / 13)
