"""What an evaluation says of many episodes a task, and how sure it is."""

from dataclasses import replace
from itertools import combinations

import pytest
from builders import group, judgement, summaries, trajectory

from rlanything.evaluation.benchmark import table_rows
from rlanything.evaluation.figures import _of_many, _passes, paired_interval, success_interval, summarise, wilson
from rlanything.types import Score, Task

PLAYED = (("calc", 1), ("calc", -1), ("calc", -1), ("vlc", 1))


def means(groups):
    return {name: value for name, value in _of_many(groups).items() if not name.endswith(("_low", "_high"))}


def judged_by_tests(outcomes, scores):
    g = group(*(trajectory(outcome, [()]) for outcome in outcomes))
    for j in range(len(scores[0])):
        g.judgements.append(judgement({(e, 0): row[j] for e, row in enumerate(scores)}, shared=True))
    return g


def test_best_of_n_is_the_program_that_passes_most_generated_tests():
    picked = judged_by_tests([-1, 1, -1], [(1, -1), (1, 1), (-1, None)])
    missed = judged_by_tests([1, -1, -1], [(-1, -1), (1, 1), (-1, -1)])
    tied = judged_by_tests([1, -1, 1], [(1, 1), (1, 1), (-1, -1)])
    figures = means(summaries([picked, missed, tied]))
    assert figures == {"pass@2": pytest.approx(7 / 9), "pass@3": 1.0, "best_of_3": pytest.approx(0.5)}
    assert means(summaries([judged_by_tests([-1, -1], [(1,), (1,)])])) == {"pass@2": 0.0, "best_of_2": 0.0}


def test_one_episode_a_task_has_no_such_figures_and_turns_without_tests_no_choice():
    assert _of_many(summaries([group(trajectory(1, [(1,)]))])) == {}
    assert means(summaries([group(trajectory(1, [(1,)]), trajectory(-1, [(1,)]))])) == {"pass@2": 1.0}


def answered(*answers, truth="7"):
    g = group(*(trajectory(1 if answer == truth else -1, [()]) for answer in answers))
    for t, answer in zip(g.trajectories, answers, strict=True):
        t.score = replace(t.score, answer=answer)
    return g


def test_pass_at_j_is_the_chance_that_one_of_j_draws_is_right():
    # 1 of 4 right: 1 - C(3, 2)/C(4, 2) = 1/2 and 1 - C(3, 3)/C(4, 3) = 3/4; 3 of 4: 1 - 0 = 1.
    figures = means(solved(1, 3, of=4))
    assert figures == {"pass@2": pytest.approx(0.75), "pass@3": pytest.approx(0.875), "pass@4": 1.0}
    for n, c, j in ((5, 2, 2), (8, 1, 4), (8, 3, 4)):
        draws = [any(i < c for i in drawn) for drawn in combinations(range(n), j)]
        assert _passes(solved(c, of=n)[0], j) == pytest.approx(sum(draws) / len(draws))
    assert list(means(solved(1, of=32))) == [f"pass@{j}" for j in range(2, 33)]


@pytest.mark.parametrize(
    ("answers", "share"),
    [
        (["7", "7", "8"], 1.0),
        (["7", "8", "8"], 0.0),
        (["7", "8"], 0.5),  # a tie is shared
        (["7"] + [None] * 9, 1.0),  # no answer is no vote
        (["7", "8", " 8", "9"], 0.0),  # white space makes no other answer
        ([None, "", "8"], 0.0),
        (["", ""], 0.0),
    ],
)
def test_the_majority_is_a_vote_of_answers_alone(answers, share):
    groups = summaries([answered(*answers)], lambda task, answer: answer.strip())
    assert _of_many(groups)[f"maj@{len(answers)}"] == share


def test_wrong_answers_that_look_like_nothing_are_no_votes_for_the_right_one():
    assert _of_many(summaries([answered("7", "$ $", "\\text{}")], lambda task, answer: ""))["maj@3"] == 0.0


def test_tasks_that_ask_for_no_answer_have_no_majority():
    programs = group(trajectory(1, [()]), trajectory(1, [()]))
    assert "maj@2" not in _of_many(summaries([programs]))
    assert _of_many(summaries([programs, answered("8", "8")]))["maj@2"] == 0.0


def solved(*counts: int, of: int):
    return summaries([group(*(trajectory(1 if i < n else -1, [()]) for i in range(of))) for n in counts])


def test_episodes_of_one_task_are_no_independent_observations():
    # Half of 30 tasks are solved, each in all of 32 episodes: as sure as 30 single episodes, not as 960.
    low, high = success_interval(solved(*[32, 0] * 15, of=32))
    assert (low, high) == (pytest.approx(1 / 3, abs=0.02), pytest.approx(2 / 3, abs=0.02))
    assert high - low > 4 * (wilson(480, 960)[1] - wilson(480, 960)[0])


def test_tasks_that_were_played_once_have_wilsons_interval():
    assert success_interval(solved(1, 1, 0, 1, of=1)) == wilson(3, 4)


def test_tasks_that_differ_little_are_told_apart_from_many_that_differ_much():
    narrow, wide = success_interval(solved(15, 16, 17, 16, of=32)), success_interval(solved(0, 32, 0, 32, of=32))
    assert narrow[1] - narrow[0] < 0.1 < 0.5 < wide[1] - wide[0]


def test_tasks_of_one_rate_say_nothing_of_the_spread_between_tasks():
    assert success_interval(solved(2, 2, 2, of=4)) == wilson(2, 3)  # 1.5 of 3, rounded to even
    assert success_interval(solved(4, 4, 4, of=4)) == wilson(3, 3)


def bounds(figures, name):
    return figures[f"{name}_low"], figures[f"{name}_high"]


def test_figures_of_all_episodes_have_an_interval_over_tasks():
    # Three of the 4 tasks are solved at least once: these are 3 of 4 single observations, whatever the episodes.
    assert bounds(_of_many(solved(0, 1, 2, 2, of=2)), "pass@2") == wilson(3, 4)
    clear = _of_many(summaries([answered("7", "7"), answered("8", "8"), answered("7", None)]))
    assert bounds(clear, "maj@2") == wilson(2, 3)
    tied = _of_many(summaries([answered("7", "7"), answered("8", "8"), answered("7", "8")]))
    assert tied["maj@2"] == 0.5 and bounds(tied, "maj@2") == paired_interval([1.0, 0.0, 0.5])
    assert not [name for name in _of_many(solved(1, of=4)) if name.startswith(("pass@2_", "pass@3_"))]


def test_the_table_shows_the_figures_of_all_episodes_and_of_no_fewer():
    row = table_rows("seen", summarise(solved(0, 1, 2, 2, of=3), lambda task: "any"))[0]
    assert row["pass@3"] == "75.0%" and "pass@2" not in row


def test_each_kind_has_its_episodes_and_the_intervals_of_its_success_and_score():
    made = [group(trajectory(o, [()]), task=Task(id=f"{app} {i}", payload={})) for i, (app, o) in enumerate(PLAYED)]
    for played, reward in zip(made, (1.0, 0.5, 0.0, 1.0), strict=True):
        played.trajectories[0].score = Score(success=reward == 1.0, reward=reward)
    figures = summarise(summaries(made), lambda task: task.id.split()[0])
    assert (figures["episodes/calc"], figures["episodes/vlc"]) == (3, 1)
    assert (figures["success_low/calc"], figures["success_high/calc"]) == wilson(1, 3)
    assert figures["partial_score/calc"] == 0.5
    assert (figures["partial_low/calc"], figures["partial_high/calc"]) == paired_interval([1.0, 0.5, 0.0])
    rows = table_rows("desktops", figures)
    assert [row["episodes"] for row in rows] == ["4", "3", "1"] and rows[2]["95 %"] == "20.7% to 100.0%"
    assert rows[1]["score"] == "50.0%"


def test_calls_by_kind_of_task_show_which_tasks_need_no_tool():
    # Easy: 1 of 4 episodes calls, with two calls. Hard: both episodes call, one of them unreadably.
    easy = [group(*(trajectory(1, [()]) for _ in range(2)), task=Task(id=f"easy {i}", payload={})) for i in (1, 2)]
    hard = group(trajectory(1, [()]), trajectory(-1, [()]), task=Task(id="hard 1", payload={}))
    called = [(easy[0], 0, "call", ("ok", "exception")), (hard, 0, "call", ("ok",)), (hard, 1, "unreadable", ("x",))]
    for made, episode, kind, results in called:
        turn = made.trajectories[episode].turns[0]
        turn.kind, turn.results = kind, results
    figures = summarise(summaries([*easy, hard]), lambda task: task.id.split()[0])
    assert (figures["call_share/easy"], figures["call_share/hard"]) == (0.25, 1.0)
    assert figures["call_share"] == 0.5 and figures["calls"] == pytest.approx(4 / 6)
    assert [row["with calls"] for row in table_rows("seen", figures)] == ["50.0%", "25.0%", "100.0%"]


def test_a_kind_without_calls_has_none_and_a_split_without_calls_no_such_figure():
    quiet = [group(trajectory(1, [()]), task=Task(id=kind, payload={})) for kind in ("easy", "hard")]
    figures = summarise(summaries(quiet), lambda task: task.id)
    assert not [name for name in figures if name.startswith("call")]
    assert not [row for row in table_rows("seen", figures) if "with calls" in row]
    quiet[1].trajectories[0].turns[0].kind, quiet[1].trajectories[0].turns[0].results = "call", ("ok",)
    assert summarise(summaries(quiet), lambda task: task.id)["call_share/easy"] == 0


def test_the_same_episodes_give_the_same_interval():
    groups = solved(1, 2, 3, 0, of=4)
    assert success_interval(groups) == success_interval(groups)
