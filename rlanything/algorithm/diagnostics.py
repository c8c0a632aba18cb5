"""What a person wants to know of rollouts: success, and how far the reward model can be believed. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from rlanything.types import Evaluation, Group

PASSED = "ok"  # the verdict of a check that an action passes


def theorem_bound(mu: float, m: int) -> float:
    """1 - exp(-m (mu - 1)^2 / 4): how surely m votes order a good and a bad step, for mu > 1 (Theorem 1)."""
    return 1.0 - math.exp(-m * (mu - 1.0) ** 2 / 4.0) if mu > 1.0 else 0.0


def diagnostics(groups: Sequence[Group]) -> dict[str, float]:
    """What a person wants to know of one step's rollouts; nan where nothing was there to measure.

    `env_s` is how long the environment (in coding, the sandbox) took to answer an action. `rm_process_accuracy`
    compares scores with the domain's own step labels, which no update of the loop ever sees; `rm_process_balanced` is
    the mean of its recalls on progress and on no progress. `failures` are the episodes that the infrastructure broke
    for good, by kind too; `retries` those that were played anew.
    """
    trajectories = [t for g in groups for t in g.valid]
    broken = Counter(str(t.status) for g in groups for t in g.trajectories if t.status.is_failure)
    turns = [(t, turn) for t in trajectories for turn in t.turns]
    votes = [(t.outcome, turn.label, score) for t, turn in turns for score in turn.scores]
    scored = [(o, label, s) for o, label, s in votes if s is not None]
    labelled = [(label, s) for _, label, s in scored if label is not None]
    p_plus = _mean(s > 0 for o, _, s in scored if o > 0)
    p_minus = _mean(s < 0 for o, _, s in scored if o < 0)
    m = max((len(turn.scores) for _, turn in turns), default=0)
    recalls = [_mean(s > 0 for label, s in labelled if label > 0), _mean(s < 0 for label, s in labelled if label < 0)]
    return {
        "success_rate": _mean(t.success for t in trajectories),
        "mean_reward": _mean(turn.reward for _, turn in turns if turn.reward is not None),
        "mean_turns": _mean(len(t.turns) for t in trajectories),
        "invalid_action_rate": _mean(turn.invalid for _, turn in turns),
        "unparsable_action_rate": _mean(bool(turn.parse_error) for _, turn in turns),
        "truncated_rate": _mean(t.status == "truncated" for t in trajectories),
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
        **_check_figures(groups),
        **_test_figures(groups),
    }


def _check_figures(groups: Sequence[Group]) -> dict[str, float]:
    """Where a domain makes several checks of an action: their share that is passed (of no action: none), and that of
    each verdict."""
    results = [turn.results for g in groups for t in g.valid for turn in t.turns]
    verdicts = Counter(verdict for found in results for verdict in found)
    if not verdicts:
        return {}
    shares = {f"verdict/{verdict}": n / verdicts.total() for verdict, n in sorted(verdicts.items())}
    return {"pass_ratio": _mean(sum(v == PASSED for v in found) / max(1, len(found)) for found in results), **shares}


def _test_figures(groups: Sequence[Group]) -> dict[str, float]:
    """Where the reward model writes unit tests, of those tasks that have a correct program: the share that all correct
    programs pass, and that also fails every wrong one; what is no test at all; and of which the sandbox did not say."""
    if not any(g.tests for g in groups):
        return {}
    solved = [g for g in groups if any(t.success for t in g.valid)]
    mixed = [g for g in solved if not all(t.success for t in g.valid)]
    return {
        "test_accuracy": _mean(test.score == 1 for g in solved for test in g.tests if _is_known(test)),
        "test_unknown_rate": _mean(not _is_known(test) for g in solved for test in g.tests),
        "test_detect_rate": _mean(_detects(g, j) for g in mixed for j in range(len(g.tests))),
        "test_unparsable_rate": _mean(bool(test.parse_error) for g in groups for test in g.tests),
    }


def _detects(group: Group, j: int) -> bool:
    wrong = [turn.test_scores[j] for t in group.valid if not t.success for turn in t.turns]
    return group.tests[j].score == 1 and all(score in (-1, None) for score in wrong)


def _is_known(test: Evaluation) -> bool:
    """Whether the sandbox tried it on a correct program, or need not."""
    return bool(test.parse_error) or test.score is not None


def _mean(values: Iterable[float]) -> float:
    x = [float(v) for v in values]
    return sum(x) / len(x) if x else float("nan")
