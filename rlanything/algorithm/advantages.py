"""Integrated feedback for the policy and consistency feedback for the reward model.

Pure numpy on plain data (paper arXiv 2602.02488, section 3; DESIGN section 1 has the definitions). Episodes
that the infrastructure broke never enter a baseline, and an evaluation without a score is absent from the
mean: neither can move another episode's advantage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from rlanything.config.schema import AlgorithmConfig, RewardConfig
from rlanything.types import Evaluation, Group, Trajectory, Turn

ZERO_SPREAD = 1e-8  # a standard deviation below it is rounding, not a difference


def standardise(values: Sequence[float]) -> np.ndarray:
    """z-scores (population standard deviation); all 0 where there is one value or no spread."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) < 2 or x.std() < ZERO_SPREAD:
        return np.zeros(len(x))
    return (x - x.mean()) / x.std()


def step_signal(turn: Turn, tests: Sequence[Evaluation], step_tests: str) -> float | None:
    """mean_j S_ij over the evaluations that hold a score; None where none does.

    Of unit tests those count that every correct program passes, or `all`. Where none does the signal is 0, for all
    programs of the task alike, so that the outcome alone decides.
    """
    if not tests:
        scores = [s for s in turn.scores if s is not None]
        return sum(scores) / len(scores) if scores else None
    counted = zip(turn.test_scores, tests, strict=True)
    scores = [s for s, test in counted if s is not None and (step_tests == "all" or test.score == 1)]
    return sum(scores) / len(scores) if scores else 0.0


def discounted_signals(turns: Sequence[Turn], discount: float) -> list[float]:
    """sum over k >= i of discount^(k - i) mean_j S_kj for every turn i; a turn without a score adds 0."""
    result, ahead = [], 0.0
    for turn in reversed(turns):
        ahead = (turn.signal or 0.0) + discount * ahead
        result.append(ahead)
    return result[::-1]


def integrated_feedback(outcome: int, signal: float | None, config: AlgorithmConfig) -> float | None:
    """R_i = w_o O + lambda mean_j S_ij; None (takes no part) where lambda counts and no evaluation has a score."""
    if config.step_weight == 0:
        return config.outcome_weight * outcome
    if signal is None:
        return None
    return config.outcome_weight * outcome + config.step_weight * signal


def within(accuracy: float, band: Sequence[float]) -> bool:
    """Whether a group of this accuracy trains (the bounds included; nan is outside)."""
    return band[0] <= accuracy <= band[1]


def assign_policy_advantages(group: Group, config: AlgorithmConfig, step_tests: str = "valid_only") -> None:
    """Fill `reward` and `advantage` of every turn of the group's valid episodes.

    Advantages below 0 are multiplied by `negative_weight`: below 1, a weak policy is taught less not to try again what
    seldom works, where the step signal calls every failed try bad.
    Every turn of a broken episode keeps None, and so does a turn without a parsable evaluation where these count
    (every rule but `trajectory`, whose advantage is the episode's).
    """
    for trajectory in group.trajectories:
        for turn in trajectory.turns:
            turn.signal = turn.reward = turn.advantage = None
    for trajectory in group.valid:
        for turn in trajectory.turns:
            turn.signal = step_signal(turn, group.tests, step_tests)
            turn.reward = integrated_feedback(trajectory.outcome, turn.signal, config)
    ADVANTAGES[config.advantage](group.valid, config)
    for turn in (turn for t in group.valid for turn in t.turns):
        if turn.advantage is not None and turn.advantage < 0:
            turn.advantage *= config.negative_weight


def _step_index(trajectories: list[Trajectory], config: AlgorithmConfig) -> None:
    """The paper: z-score of R_i over the episodes that reached the same step index."""
    for i in range(_longest(trajectories)):
        turns = [t.turns[i] for t in trajectories if i < len(t.turns) and t.turns[i].reward is not None]
        for turn, z in zip(turns, standardise([turn.reward or 0.0 for turn in turns]), strict=True):
            turn.advantage = float(z)


def _step_index_absorbing(trajectories: list[Trajectory], config: AlgorithmConfig) -> None:
    """As `step_index`, but a finished episode stays in the later baselines with its final feedback.

    Without it late baselines hold failures alone, and the z-score there is the step signal alone.
    """
    finals = [next((t.reward for t in reversed(tr.turns) if t.reward is not None), None) for tr in trajectories]
    for i in range(_longest(trajectories)):
        rewards: list[float] = []
        turns: list[Turn | None] = []
        for trajectory, final in zip(trajectories, finals, strict=True):
            turn = trajectory.turns[i] if i < len(trajectory.turns) else None
            reward = turn.reward if turn is not None else final
            if reward is not None:
                rewards.append(reward)
                turns.append(turn)
        for turn, z in zip(turns, standardise(rewards), strict=True):
            if turn is not None:
                turn.advantage = float(z)


def _separate(trajectories: list[Trajectory], config: AlgorithmConfig) -> None:
    """Outcome and step signal each standardised over the episodes that reached the same step index, then added.

    Each counts by its weight, whatever its spread. Where only failures are left the outcome's part is 0: standardised
    over all episodes it would push down every token of their long tails, and unlikely tokens would gain by it.

    With the option `step_discount` gamma the signal of a step is that of the steps after it too: sum over k >= i of
    gamma^(k - i) mean_j S_kj. Its own alone (gamma = 0) teaches a weak policy to do what is seldom wrong, such as to go
    on searching, rather than what leads on.
    """
    step_discount = config.options.get("step_discount", 0.0)
    signals_to_go = [discounted_signals(t.turns, step_discount) for t in trajectories]
    for i in range(_longest(trajectories)):
        parts = [
            (t.outcome, signals[i], t.turns[i])
            for t, signals in zip(trajectories, signals_to_go, strict=True)
            if i < len(t.turns) and t.turns[i].reward is not None
        ]
        outcomes = standardise([outcome for outcome, _, _ in parts])
        signals = standardise([signal for _, signal, _ in parts])
        for (_, _, turn), outcome, signal in zip(parts, outcomes, signals, strict=True):
            turn.advantage = float(config.outcome_weight * outcome + config.step_weight * signal)


def _trajectory(trajectories: list[Trajectory], config: AlgorithmConfig) -> None:
    """Outcome only, one advantage for a whole episode (GRPO, arXiv 2402.03300)."""
    for trajectory, z in zip(trajectories, standardise([t.outcome for t in trajectories]), strict=True):
        for turn in trajectory.turns:
            turn.advantage = float(z)


ADVANTAGES: dict[str, Callable[[list[Trajectory], AlgorithmConfig], None]] = {
    "step_index": _step_index,
    "step_index_absorbing": _step_index_absorbing,
    "separate": _separate,
    "trajectory": _trajectory,
}


def _longest(trajectories: Iterable[Trajectory]) -> int:
    return max((len(t.turns) for t in trajectories), default=0)


def assign_reward_advantages(group: Group, config: RewardConfig) -> None:
    """Consistency feedback of every evaluation, z-scored over its step or over the task: R_i * S_ij (the paper), or
    (R_i - mean R of the task) * S_ij where `consistency` is relative.

    Where most episodes fail R is mostly negative, "-1" agrees with it whatever the step was like, and a baseline does
    not help, for it is the same for both scores: the reward model ends by saying nothing else. Relative to the task's
    mean, "-1" agrees with the worse steps and "+1" with the better ones.

    Needs the rewards that `assign_policy_advantages` filled. An evaluation without a score gets the fixed
    `unparsable_reward` instead, whatever R_i is, so that it can never reward or spoil a vote.
    """
    rewards = [turn.reward for t in group.valid for turn in t.turns if turn.reward is not None]
    middle = sum(rewards) / len(rewards) if rewards and config.consistency == "relative" else 0.0
    if group.tests:
        _assign_test_advantages(group, config, middle)
        return
    pools = []
    for trajectory in group.valid:
        for turn in trajectory.turns:
            for evaluation in turn.evaluations:
                scored = evaluation.score is not None and turn.reward is not None
                evaluation.reward = (
                    ((turn.reward or 0.0) - middle) * (evaluation.score or 0) if scored else config.unparsable_reward
                )
            pools.append(turn.evaluations)
    if config.group == "task":
        pools = [[e for pool in pools for e in pool]]
    for pool in pools:
        for evaluation, z in zip(pool, standardise([e.reward for e in pool]), strict=True):
            evaluation.advantage = float(z)


def _assign_test_advantages(group: Group, config: RewardConfig, middle: float) -> None:
    """The reward of every unit test, z-scored over the task's; 0 for all where no program is correct, for then nothing
    tells a right test from a wrong one."""
    turns = [(t.success, turn) for t in group.valid for turn in t.turns if turn.reward is not None]
    for j, test in enumerate(group.tests):
        passed = [(success, turn.test_scores[j], (turn.reward or 0.0) - middle) for success, turn in turns]
        if config.consistency == "tests":
            test.reward = reward_of_test([(success, score) for success, score, _ in passed], config.unparsable_reward)
        else:
            votes = [reward * score for _, score, reward in passed if score is not None]
            test.reward = sum(votes) / len(votes) if votes else config.unparsable_reward
    solved = any(success for success, _ in turns)
    known = [test for test in group.tests if test.parse_error or test.score is not None]  # else the sandbox broke
    advantages = standardise([test.reward for test in known]) if solved else np.zeros(len(known))
    for test, z in zip(known, advantages, strict=True):
        test.advantage = float(z)


def reward_of_test(passed: Sequence[tuple[bool, int | None]], unparsable: float) -> float:
    """The paper's reward of a unit test, from (whether a program is correct, +1 where it passes the test, else -1).

    A test that every correct program passes earns the number of wrong programs that fail it, another loses the number
    of wrong ones that pass it; +1 and -1 where there are no wrong ones. What is no test gets `unparsable`, or what the
    worst test would get where that is less.
    """
    wrong = [score for success, score in passed if not success and score is not None]
    right = [score for success, score in passed if success and score is not None]
    if not right:
        return min(unparsable, -float(max(1, sum(not success for success, _ in passed))))
    if all(score > 0 for score in right):
        return float(sum(score < 0 for score in wrong)) if wrong else 1.0
    return 0.0 - sum(score > 0 for score in wrong) if wrong else -1.0
