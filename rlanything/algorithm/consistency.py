"""Consistency feedback: what a judgement of the reward model is worth (arXiv 2602.02488, section 3). Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

from rlanything.algorithm.advantages import standardise
from rlanything.config.schema import RewardConfig
from rlanything.types import Group, Judgement


def assign_consistency(groups: Sequence[Group], config: RewardConfig) -> None:
    """Fill `reward` and `advantage` of every judgement. Needs the rewards that `assign_advantages` filled.

    A judgement earns the mean of R_i * S_ij over the turns that it covers, which is the paper's rule for one turn. With
    `reward.consistency: relative` R_i is taken relative to its mean over the task. If most episodes fail, R is mostly
    negative, "-1" agrees with it whatever the step was like, and a baseline does not help, because it is the same for
    both scores: the reward model ends by saying nothing else. Relative to the task's mean, "-1" agrees with the worse
    steps and "+1" with the better ones. `tests` is the paper's rule for unit tests (`reward_of_test`).

    A judgement without a score gets the fixed `reward.unparsable_reward`, so that it can never reward or spoil a vote.
    Advantages are z-scores over the judgements of the same turns (`reward.group: step`) or of the whole task.
    """
    for group in groups:
        _assign(group, config)


def _assign(group: Group, config: RewardConfig) -> None:
    valid = {t.index: t for t in group.valid}
    feedback = {(t.index, i): turn.reward for t in valid.values() for i, turn in enumerate(t.turns)}
    known = [r for r in feedback.values() if r is not None]
    middle = sum(known) / len(known) if known and config.consistency == "relative" else 0.0
    success = {index: t.success for index, t in valid.items()}
    pools: dict[Hashable, list[Judgement]] = defaultdict(list)
    for judgement in group.judgements:
        judgement.reward = judgement.advantage = 0.0
        places = [place for place in judgement.scores if place[0] in valid]
        if not places or (judgement.shared and not _can_tell(judgement, success)):
            continue
        votes = [(feedback[p], s) for p in places if (s := judgement.scores[p]) is not None and feedback[p] is not None]
        if config.consistency == "tests":
            passed = [(success[e], s) for (e, i), s in judgement.scores.items() if feedback.get((e, i)) is not None]
            judgement.reward = reward_of_test(passed, config.unparsable_reward)
        elif votes:
            judgement.reward = sum(((r or 0.0) - middle) * s for r, s in votes) / len(votes)
        else:
            judgement.reward = config.unparsable_reward
        pools[frozenset(judgement.scores) if config.group == "step" else None].append(judgement)
    for pool in pools.values():
        for judgement, z in zip(pool, standardise([j.reward for j in pool]), strict=True):
            judgement.advantage = float(z)


def _can_tell(judgement: Judgement, success: dict[int, bool]) -> bool:
    """Return whether a shared judgement can be rewarded: some program is correct, and the test was tried on one
    or is no test at all."""
    right = [s for (episode, _), s in judgement.scores.items() if success.get(episode)]
    return bool(right) and (bool(judgement.parse_error) or any(s is not None for s in right))


def passes_correct(group: Group, judgement: Judgement) -> bool | None:
    """Return whether every correct program of the task passes a unit test; None if it was tried on none of them."""
    success = {t.index: t.success for t in group.valid}
    right = [s for (episode, _), s in judgement.scores.items() if success.get(episode) and s is not None]
    return all(s > 0 for s in right) if right else None


def reward_of_test(passed: Sequence[tuple[bool, int | None]], unparsable: float) -> float:
    """The paper's reward of a unit test, from (whether a program is correct, +1 if it passes the test, else -1) pairs.

    A test that every correct program passes earns the number of wrong programs that fail it; another test loses the
    number of wrong programs that pass it. Without wrong programs these are +1 and -1. A text that holds no test gets
    `unparsable`, or what the worst test would get if that is less.
    """
    wrong = [score for success, score in passed if not success and score is not None]
    right = [score for success, score in passed if success and score is not None]
    if not right:
        return min(unparsable, -float(max(1, sum(not success for success, _ in passed))))
    if all(score > 0 for score in right):
        return float(sum(score < 0 for score in wrong)) if wrong else 1.0
    return 0.0 - sum(score > 0 for score in wrong) if wrong else -1.0
