"""Figures that people read of rollouts: success, and how far to believe the reward model. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rlanything.algorithm.consistency import passes_correct, scores_by_success
from rlanything.algorithm.selection import PASSED
from rlanything.algorithm.shaping import CALL
from rlanything.types import Group, Judgement, Trajectory


def theorem_bound(mu: float, m: int) -> float:
    """1 - exp(-m (mu - 1)^2 / 4): how surely m votes order a good and a bad step, for mu > 1 (Theorem 1)."""
    return 1.0 - math.exp(-m * (mu - 1.0) ** 2 / 4.0) if mu > 1.0 else 0.0


def diagnostics(groups: Sequence[Group]) -> dict[str, float]:
    """The figures of one step's rollouts; nan if there was nothing to measure.

    `env_s` is how long the environment (in coding, the sandbox) took to answer an action [s]. `rm_process_accuracy`
    compares scores with the domain's own step labels, which no update of the loop ever sees; `rm_process_balanced` is
    the mean of its recalls on progress and on no progress. `failures` counts the episodes that the infrastructure broke
    for good, also by kind; `retries` those that were played anew; `ended/*` are shares of the reasons to end,
    `action/*` of the kinds of actions. `shaping/*` are the terms of an episode's reward besides its outcome, `phase/*`
    is how long it spent in a phase [s], `env/*` what the domain says of its environments, all as means.
    """
    trajectories = [t for g in groups for t in g.valid]
    broken = Counter(str(t.status) for g in groups for t in g.trajectories if t.status.is_failure)
    endings = Counter(str(t.ending) for t in trajectories)
    turns = [(t, turn) for t in trajectories for turn in t.turns]
    kinds = Counter(turn.kind for _, turn in turns if turn.kind)
    votes = [vote for g in groups for vote in _votes(g)]
    scored = [(o, label, s) for o, label, s in votes if s is not None]
    labelled = [(label, s) for _, label, s in scored if label is not None]
    p_plus = _mean(s > 0 for o, _, s in scored if o > 0)
    p_minus = _mean(s < 0 for o, _, s in scored if o < 0)
    m = max((n for g in groups for n in Counter(p for j in g.judgements for p in j.scores).values()), default=0)
    recalls = [_mean(s > 0 for label, s in labelled if label > 0), _mean(s < 0 for label, s in labelled if label < 0)]
    return {
        "success_rate": _mean(t.success for t in trajectories),
        "mean_reward": _mean(turn.reward for _, turn in turns if turn.reward is not None),
        "mean_turns": _mean(len(t.turns) for t in trajectories),
        "invalid_action_rate": _mean(turn.invalid for _, turn in turns),
        "unparsable_action_rate": _mean(bool(turn.parse_error) for _, turn in turns),
        "truncated_rate": _mean(t.status == "truncated" for t in trajectories),
        **{f"ended/{ending}": n / len(trajectories) for ending, n in sorted(endings.items())},
        "mean_score": _mean(t.score.reward for t in trajectories if t.score and t.score.reward is not None),
        "env_s_mean": _mean(turn.env_s for _, turn in turns),
        "env_s_max": max((turn.env_s for _, turn in turns), default=float("nan")),
        "step_progress_rate": _mean(turn.label > 0 for _, turn in turns if turn.label is not None),
        "rm_p_plus": p_plus,
        "rm_p_minus": p_minus,
        "rm_mu": p_plus + p_minus,
        "rm_bound": theorem_bound(p_plus + p_minus, m) if not math.isnan(p_plus + p_minus) else float("nan"),
        "rm_outcome_agreement": _mean(s == o for o, _, s in scored),
        "rm_process_accuracy": _mean(s == label for label, s in labelled),
        "rm_process_balanced": sum(recalls) / 2,
        "rm_positive_rate": _mean(s > 0 for _, _, s in scored),
        "rm_unparsable_rate": _mean(s is None for _, _, s in votes),
        "failures": float(broken.total()),
        **{f"failures/{kind}": float(n) for kind, n in sorted(broken.items())},
        "retries": float(sum(t.retries for g in groups for t in g.trajectories)),
        **{f"action/{kind}": n / len(turns) for kind, n in sorted(kinds.items())},
        **_means("phase", [t.phases for t in trajectories], each=len(trajectories)),
        **_means("shaping", [t.shaping for t in trajectories], each=len(trajectories)),
        **_means("env", [g.figures for g in groups], each=len(groups)),
        **_call_figures(trajectories),
        **_check_figures(groups),
        **_test_figures(groups),
    }


def _means(section: str, figures: Sequence[Mapping[str, float]], each: int) -> dict[str, float]:
    """The sums of figures by name over `each`."""
    sums: Counter[str] = Counter()
    for named in figures:
        sums.update(named)
    return {f"{section}/{name}": total / each for name, total in sorted(sums.items())}


def _votes(group: Group) -> list[tuple[int, int | None, int | None]]:
    """(outcome O, the domain's label of the turn, score S) of every score of the group's valid episodes."""
    turns = {(t.index, i): (t.outcome, turn.label) for t in group.valid for i, turn in enumerate(t.turns)}
    return [(*turns[place], s) for j in group.judgements for place, s in j.scores.items() if place in turns]


def _call_figures(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """If episodes call tools: calls of an episode, and the share of them that ended well."""
    calls = [[r for turn in t.turns if turn.kind == CALL for r in turn.results] for t in trajectories]
    if not any(calls):
        return {}
    return {"calls": _mean(map(len, calls)), "call_success_rate": _mean(r == PASSED for found in calls for r in found)}


def _check_figures(groups: Sequence[Group]) -> dict[str, float]:
    """If a domain makes several checks of an action: the share that is passed (none, without an action), and the share
    of each verdict."""
    results = [turn.results for g in groups for t in g.valid for turn in t.turns]
    verdicts = Counter(verdict for found in results for verdict in found)
    if not verdicts:
        return {}
    shares = {f"verdict/{verdict}": n / verdicts.total() for verdict, n in sorted(verdicts.items())}
    return {"pass_ratio": _mean(sum(v == PASSED for v in found) / max(1, len(found)) for found in results), **shares}


def _test_figures(groups: Sequence[Group]) -> dict[str, float]:
    """Shares of the unit tests of tasks that have a correct program: every correct program passes them, every wrong
    program fails them too, they are no test, or the sandbox could not try them."""
    tested = [g for g in groups if g.shared]
    if not tested:
        return {}
    solved = [(g, test) for g in tested if any(t.success for t in g.valid) for test in g.shared]
    mixed = [(g, test) for g, test in solved if not all(t.success for t in g.valid)]
    known = [(g, test) for g, test in solved if test.parse_error or passes_correct(g, test) is not None]
    return {
        "test_accuracy": _mean(passes_correct(g, test) is True for g, test in known),
        "test_unknown_rate": 1.0 - len(known) / len(solved) if solved else float("nan"),
        "test_detect_rate": _mean(_detects(g, test) for g, test in mixed),
        "test_unparsable_rate": _mean(bool(test.parse_error) for g in tested for test in g.shared),
    }


def _detects(group: Group, test: Judgement) -> bool:
    wrong = scores_by_success(group, test, success=False)
    return passes_correct(group, test) is True and all(s in (-1, None) for s in wrong)


def _mean(values: Iterable[float]) -> float:
    x = [float(v) for v in values]
    return sum(x) / len(x) if x else float("nan")
