"""Consistency feedback: what a judgement of the reward model is worth (arXiv 2602.02488, section 3). Pure."""

from collections import defaultdict
from collections.abc import Hashable, Sequence

from rlanything.algorithm.advantages import standardise
from rlanything.algorithm.branches import Tree
from rlanything.config.schema import RewardConfig
from rlanything.types import Group, Judgement, Place


def assign_consistency(groups: Sequence[Group], config: RewardConfig) -> None:
    """Fill `reward` and `advantage` of every judgement. Needs the rewards that `assign_advantages` filled.

    A judgement earns the mean of R_i * S_ij over the turns that it covers, which is the paper's rule for one turn. With
    `reward.consistency: relative` R_i is taken relative to its mean over the task. If most episodes fail, R is mostly
    negative, "-1" agrees with it whatever the step was like, and a baseline does not help, because it is the same for
    both scores: the reward model ends by saying nothing else. Relative to the task's mean, "-1" agrees with the worse
    steps and "+1" with the better ones. With `worth` R_i is by how much the turn's segment changed the mean outcome
    (`branches.Tree`): it tells a wrong turn from the right ones before it, if other episodes went on from between them.
    `tests` is the paper's rule for unit tests (`reward_of_test`).

    A judgement without a score gets the fixed `reward.unparsable_reward`, so that it can never reward or spoil a vote.
    Advantages are z-scores over the judgements of the same turns (`reward.group: step`), of the turns with the same
    index in the task's episodes (`index`), or of the whole task (`task`). Much that may fail comes after an
    early step, so right judgements of early steps earn less. The task's mean as their baseline pushes them down.
    """
    for group in groups:
        _assign(group, config)


def _assign(group: Group, config: RewardConfig) -> None:
    episodes = {t.index: t for t in group.valid}
    feedback = _feedback(group, config.consistency)
    pools: dict[Hashable, list[Judgement]] = defaultdict(list)
    for judgement in group.judgements:
        judgement.reward = judgement.advantage = 0.0
        covered = [(episodes[e], i, s) for (e, i), s in judgement.scores.items() if e in episodes]
        if not covered or (judgement.shared and not _can_tell(group, judgement)):
            continue
        rewarded = [(t.success, s) for t, i, s in covered if t.turns[i].reward is not None and i >= t.begun]
        scored = [(place, s) for place, s in judgement.scores.items() if s is not None and place[0] in episodes]
        agreement = [feedback[place] * s for place, s in scored if place in feedback]
        if config.consistency == "tests":
            judgement.reward = reward_of_test(rewarded, config.unparsable_reward)
        elif agreement:
            judgement.reward = sum(agreement) / len(agreement)
        elif scored:  # nothing is known of its turn, whose episode went on from one that broke
            continue
        else:
            judgement.reward = config.unparsable_reward
        pools[_pool(judgement, config.group)].append(judgement)
    for pool in pools.values():
        for judgement, z in zip(pool, standardise([j.reward for j in pool]), strict=True):
            judgement.advantage = float(z)


def _feedback(group: Group, consistency: str) -> dict[Place, float]:
    """The number that the scores of a turn should agree with, for each turn of a valid episode that has one."""
    if consistency == "worth":
        return Tree(group.valid, lambda t: float(t.outcome)).worths()
    turns = {(t.index, i): turn.reward for t in group.valid for i, turn in enumerate(t.turns)}
    known = {place: reward for place, reward in turns.items() if reward is not None}
    own = [known[t.index, i] for t in group.valid for i in range(t.begun, len(t.turns)) if (t.index, i) in known]
    middle = sum(own) / len(own) if own and consistency == "relative" else 0.0
    return {place: reward - middle for place, reward in known.items()}


def _pool(judgement: Judgement, group: str) -> Hashable:
    """Judgements with the same result share a baseline."""
    match group:
        case "step":
            return frozenset(judgement.scores)
        case "index":
            return frozenset(i for _, i in judgement.scores)
        case _:  # task
            return None


def scores_by_success(group: Group, judgement: Judgement, success: bool) -> list[float | None]:
    """The scores that a judgement gives to the turns of the valid episodes that did, or did not, solve the task."""
    episodes = {t.index for t in group.valid if t.success == success}
    return [score for (episode, _), score in judgement.scores.items() if episode in episodes]


def _can_tell(group: Group, judgement: Judgement) -> bool:
    """True if some program is correct, and the test was tried on one or is no test at all."""
    right = scores_by_success(group, judgement, success=True)
    return bool(right) and (bool(judgement.parse_error) or any(s is not None for s in right))


def passes_correct(group: Group, judgement: Judgement) -> bool | None:
    """True if every correct program of the task passes a unit test; None if it was tried on none of them."""
    right = [s for s in scores_by_success(group, judgement, success=True) if s is not None]
    return all(s > 0 for s in right) if right else None


def reward_of_test(passed: Sequence[tuple[bool, float | None]], unparsable: float) -> float:
    """The paper's reward of a unit test, from pairs (a program is correct, +1 if it passes the test or -1 if not).

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
