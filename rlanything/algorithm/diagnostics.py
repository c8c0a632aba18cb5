"""Figures that people read of rollouts: success, and how far to believe the reward model. Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from rlanything.algorithm.consistency import passes_correct, scores_by_success
from rlanything.algorithm.shaping import CALL, UNREADABLE
from rlanything.algorithm.summary import Tally
from rlanything.algorithm.votes import best, majority
from rlanything.types import Group, Judgement, Task, is_passed

MEANS = (
    "success_rate",
    "mean_reward",
    "mean_turns",
    "response_tokens",
    "invalid_action_rate",
    "unparsable_action_rate",
    "truncated_rate",
    "mean_score",
    "env_s_mean",
    "step_progress_rate",
    "rm_p_plus",
    "rm_p_minus",
    "rm_outcome_agreement",
    "rm_process_accuracy",
    "rm_positive_rate",
    "rm_unparsable_rate",
)
SameAnswer = Callable[[Task, str], str]
"""The name of an answer to a task; answers of one name are the same."""


def theorem_bound(mu: float, m: int) -> float:
    """1 - exp(-m (mu - 1)^2 / 4): how surely m votes order a good and a bad step, for mu > 1 (Theorem 1)."""
    return 1.0 - math.exp(-m * (mu - 1.0) ** 2 / 4.0) if mu > 1.0 else 0.0


def tally(group: Group, same: SameAnswer = lambda task, answer: answer) -> Tally:
    """Count what a group shows, for `figures` and for those of an evaluation."""
    found, valid, whole = Tally(), group.valid, group.whole
    turns = [turn for t in valid for turn in t.own]
    found.add("success_rate", (t.success for t in whole))
    found.add("mean_reward", (turn.reward for turn in turns if turn.reward is not None))
    found.add("mean_turns", (len(t.turns) for t in whole))
    found.add("invalid_action_rate", (turn.invalid for turn in turns))
    found.add("unparsable_action_rate", (bool(turn.parse_error) for turn in turns))
    found.add("truncated_rate", (t.status == "truncated" for t in whole))
    found.add("mean_score", (t.score.reward for t in whole if t.score and t.score.reward is not None))
    found.add("env_s_mean", (turn.env_s for turn in turns))
    found.observe_largest("env_s_max", (turn.env_s for turn in turns))
    found.add("step_progress_rate", (turn.label > 0 for turn in turns if turn.label is not None))
    found.add("response_tokens", (sum(len(turn.response_ids) for turn in t.own) for t in valid))
    found.sums["retries"] += sum(t.retries for t in group.trajectories)
    broken = Counter(str(t.status) for t in group.trajectories if t.status.is_failure)
    found.add_section("failures", broken, broken.total())
    found.add_section("ended", Counter(str(t.ending) for t in whole), len(whole))
    found.add_section("action", Counter(turn.kind for turn in turns if turn.kind), len(turns))
    found.add_section("phase", _sums(t.phases for t in valid), len(valid))
    found.add_section("shaping", _sums(t.shaping for t in valid), len(valid))
    found.add_section("env", group.figures, 1)
    calls = [[r for turn in t.turns if turn.kind in (CALL, UNREADABLE) for r in turn.results] for t in whole]
    found.add("calls", map(len, calls))
    found.add("call_share", map(bool, calls))
    found.add("call_success_rate", (is_passed(r) for results in calls for r in results))
    verdicts = Counter(verdict for turn in turns for verdict in turn.results)
    found.add("pass_ratio", (sum(map(is_passed, t.results)) / max(1, len(t.results)) for t in turns))
    found.add_section("verdict", verdicts, verdicts.total())
    found.add("repeated_turns", (t.begun for t in valid if t.origin is not None))
    _tally_votes(group, found)
    _tally_tests(group, found)
    _tally_answers(replace(group, trajectories=whole), same, found)
    return found


def _sums(figures: Iterable[Mapping[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for named in figures:
        for name, value in named.items():
            sums[name] += value
    return sums


def _tally_votes(group: Group, found: Tally) -> None:
    """The reward model's scores of the group's valid episodes, against outcomes and the domain's labels."""
    turns = {(t.index, i): (t.outcome, t.turns[i].label) for t in group.valid for i in range(t.begun, len(t.turns))}
    votes = [(*turns[place], s) for j in group.judgements for place, s in j.scores.items() if place in turns]
    scored = [(o, label, s) for o, label, s in votes if s]  # a measured score of 0 speaks for neither
    labelled = [(label, s) for _, label, s in scored if label is not None]
    found.add("rm_p_plus", (s > 0 for o, _, s in scored if o > 0))
    found.add("rm_p_minus", (s < 0 for o, _, s in scored if o < 0))
    found.add("rm_outcome_agreement", (s * o > 0 for o, _, s in scored))
    found.add("rm_process_accuracy", (s * label > 0 for label, s in labelled))
    found.add("recall_progress", (s > 0 for label, s in labelled if label > 0))
    found.add("recall_none", (s < 0 for label, s in labelled if label < 0))
    found.add("rm_positive_rate", (s > 0 for _, _, s in scored))
    found.add("rm_unparsable_rate", (s is None for _, _, s in votes))
    found.observe_largest("votes", Counter(place for j in group.judgements for place in j.scores).values())


def tally_feedback(group: Group, found: Tally) -> None:
    """Count what a group that trains the reward model teaches it: the mean advantages of judgements of single turns, by
    the turn's label and by whether the score is right."""
    labels = {(t.index, i): t.turns[i].label for t in group.valid for i in range(t.begun, len(t.turns))}
    for judgement in group.judgements:
        if not judgement.shared and judgement.advantage:
            for place, score in judgement.scores.items():
                if score is not None and (label := labels.get(place)) is not None:
                    step, right = "progress" if label > 0 else "none", "right" if score * label > 0 else "wrong"
                    found.add(f"rm_advantage/{step}_{right}", [judgement.advantage])


def _tally_tests(group: Group, found: Tally) -> None:
    """Unit tests of a task that has a correct program: every correct program passes them, every wrong program fails
    them too, they are no test, or the sandbox could not try them."""
    found.add("test_unparsable_rate", (bool(test.parse_error) for test in group.shared))
    if not any(t.success for t in group.valid):
        return
    known = [test for test in group.shared if test.parse_error or passes_correct(group, test) is not None]
    found.add("test_accuracy", (passes_correct(group, test) is True for test in known))
    found.add_section("tests", {"known": len(known)}, len(group.shared))
    if not all(t.success for t in group.valid):
        found.add("test_detect_rate", (_detects(group, test) for test in group.shared))


def _detects(group: Group, test: Judgement) -> bool:
    wrong = scores_by_success(group, test, success=False)
    return passes_correct(group, test) is True and all(s in (-1, None) for s in wrong)


def _tally_answers(group: Group, same: SameAnswer, found: Tally) -> None:
    """maj@k, of tasks that ask for an answer, and best of k."""
    if any(t.score is not None and t.score.answer is not None for t in group.valid):
        found.add("majority", [majority(group, same)])
    if group.valid:
        found.add("best", [best(group)])


def figures(tally: Tally) -> dict[str, float]:
    """The figures of one step's rollouts; nan if there was nothing to measure.

    Episodes that went on from others are `branches`, and `repeated_turns` the turns that one of them did not sample.
    Figures of whole episodes, such as `success_rate`, leave them out; those of turns count each turn once.
    `response_tokens` are the generated tokens of an episode, all its turns together. `env_s` is how long the
    environment (in coding, the sandbox) took to answer an action [s]. `rm_process_accuracy` compares scores with the
    domain's own step labels, which no update of the loop ever sees; `rm_process_balanced` is the mean of its recalls on
    progress and on no progress. `rm_advantage/*` are mean advantages of judgements, without those of 0. `failures`
    counts the episodes that the infrastructure broke for good, also by kind; `retries` those that were played anew;
    `ended/*` are shares of the reasons to end, `action/*` of the kinds of actions. `shaping/*` are the terms of an
    episode's reward besides its outcome, `phase/*` is how long it spent in a phase [s], `env/*` what the domain says of
    its environments, all as means.

    If episodes call tools, `calls` is the number of calls an episode, `call_share` the share of episodes with a call,
    and `call_success_rate` the share of calls that ended well; those that could not be read or were refused did not. If
    a domain makes several checks of an action, `pass_ratio` is the share that is passed (none, without an action), and
    `verdict/*` the share of each verdict. If the reward model writes unit tests, `test_*` are shares of those of tasks
    that have a correct program.
    """
    mean, section = tally.mean, tally.section
    mu = mean("rm_p_plus") + mean("rm_p_minus")
    num_vote = int(tally.largest.get("votes", 0))
    found = {name: mean(name) for name in MEANS} | {
        "env_s_max": tally.largest.get("env_s_max", math.nan),
        "rm_mu": mu,
        "rm_bound": theorem_bound(mu, num_vote) if not math.isnan(mu) else math.nan,
        "rm_process_balanced": (mean("recall_progress") + mean("recall_none")) / 2,
        "failures": float(tally.counts["failures"]),
        "retries": float(tally.sums["retries"]),
    }
    found |= {name: float(n) for name, n in sorted(tally.sums.items()) if name.startswith("failures/")}
    for shown in ("ended", "action", "phase", "shaping", "env", "verdict"):
        found |= section(shown)
    if tally.counts["call_success_rate"]:
        found |= {name: mean(name) for name in ("calls", "call_share", "call_success_rate")}
    found |= {name: mean(name) for name in sorted(tally.counts) if name.startswith("rm_advantage/")}
    if tally.counts["repeated_turns"]:
        found |= {"branches": float(tally.counts["repeated_turns"]), "repeated_turns": mean("repeated_turns")}
    if tally.counts["verdict"]:
        found["pass_ratio"] = mean("pass_ratio")
    if tally.counts["test_unparsable_rate"]:
        found |= {name: mean(name) for name in ("test_accuracy", "test_detect_rate", "test_unparsable_rate")}
        found["test_unknown_rate"] = 1.0 - section("tests")["tests/known"] if tally.counts["tests"] else math.nan
    return found
