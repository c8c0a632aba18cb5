"""Advantages of the policy's turns: integrated feedback, and one rule that compares it within a group.

Pure numpy on plain data. Episodes that the infrastructure broke enter no baseline, and judgements without a score enter
no mean, so neither can move another episode's advantage.

A rule is a function `rule(group, config, *, option=default, ...)` that sets `turn.advantage` for turns of
`group.valid`. Its keyword-only parameters are what `algorithm.options` may set. It reads `trajectory.reward` (the
episode's), `turn.signal` (mean step score, or None) and `turn.reward` (integrated feedback R_i, or None). It sees one
group, because groups stay in the process that played them.
`algorithm.advantage` names a rule of `RULES`, or `module:function` of a rule of your own.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from traceback import extract_tb
from typing import Any

import numpy as np

from rlanything.algorithm.branches import Tree
from rlanything.algorithm.selection import is_void, selected
from rlanything.algorithm.shaping import is_solved, shaping
from rlanything.config.plugins import bind_options, load_object
from rlanything.config.schema import AlgorithmConfig
from rlanything.errors import ConfigError
from rlanything.types import Group, Judgement, Place, Status, Trajectory, Turn

Rule = Callable[..., None]
ZERO_SPREAD = 1e-8  # a smaller standard deviation is rounding, not a difference


def standardise(values: Sequence[float]) -> np.ndarray:
    """z-scores with the population standard deviation, shape [n]; all 0 for a single value or without spread."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) < 2 or x.std() < ZERO_SPREAD:
        return np.zeros(len(x))
    return (x - x.mean()) / x.std()


def step_signal(judgements: Sequence[Judgement], place: Place) -> float | None:
    """mean_j S_ij over the judgements of one turn that hold a score.

    None if no judgement holds a score: the turn then takes no part. 0.0 if some judgements must not count (unit tests
    that a correct program fails) and no other holds a score: the outcome alone then decides, for all episodes alike.
    """
    scores = [s for j in judgements if j.counts and (s := j.scores[place]) is not None]
    if scores:
        return sum(scores) / len(scores)
    return None if all(j.counts for j in judgements) else 0.0


def step_signals(judgements: Sequence[Judgement]) -> dict[Place, float | None]:
    """The step signal of every turn that the judgements cover."""
    of_place = defaultdict(list)
    for judgement in judgements:
        for place in judgement.scores:
            of_place[place].append(judgement)
    return {place: step_signal(covering, place) for place, covering in of_place.items()}


def integrated_feedback(reward: float, signal: float | None, config: AlgorithmConfig) -> float | None:
    """R_i = w_o O + lambda mean_j S_ij (arXiv 2602.02488, section 3).

    None if lambda is not 0 and no judgement holds a score: the turn then takes no part.
    """
    if config.step_weight == 0:
        return config.outcome_weight * reward
    if signal is None:
        return None
    return config.outcome_weight * reward + config.step_weight * signal


def within(accuracy: float, band: Sequence[float]) -> bool:
    """True if a group of this accuracy trains: the bounds do, nan does not."""
    return band[0] <= accuracy <= band[1]


def assign_advantages(groups: Sequence[Group], config: AlgorithmConfig) -> None:
    """Fill `signal`, `reward` and `advantage` of every turn, and `reward` of every episode.

    Turns of broken episodes, and of those that are not selected, keep None. Advantages below 0 are multiplied by
    `negative_weight`: the step signal calls every failed try of a weak policy bad, and a smaller weight teaches less to
    avoid what seldom works.

    Raises ConfigError if `algorithm.reward` is score and the environment gave none, or if the rule fails.
    """
    rule = advantage_rule(config)
    for group in groups:
        _assign_rewards(group, config)
        with _named(config.advantage, group):
            rule(replace(group, trajectories=selected(group, config)), config)
        for trajectory in group.valid:
            void = config.void == "mask" and is_void(trajectory)
            for turn in trajectory.turns:
                if void:
                    turn.advantage = None
                elif turn.advantage is not None and turn.advantage < 0:
                    turn.advantage *= config.negative_weight


@contextmanager
def _named(rule: str, group: Group) -> Iterator[None]:
    """Turn what a user's rule raises into a ConfigError that says where."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        line = extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"algorithm.advantage={rule}: the rule fails on the group of task {group.task.id}: {line.filename}, line "
            f"{line.lineno}: {type(error).__name__}: {error}; expected a function rule(group, config) of one group"
        ) from error


def _assign_rewards(group: Group, config: AlgorithmConfig) -> None:
    for trajectory in group.trajectories:
        trajectory.reward = None
        for turn in trajectory.turns:
            turn.signal = turn.reward = turn.advantage = None
    signals = step_signals(group.judgements)
    for trajectory in group.valid:
        trajectory.reward, trajectory.shaping = episode_reward(trajectory, config), shaping(trajectory, config)
        for i, turn in enumerate(trajectory.turns):
            turn.signal = signals.get((trajectory.index, i))
            turn.reward = integrated_feedback(trajectory.reward, turn.signal, config)


def episode_reward(trajectory: Trajectory, config: AlgorithmConfig) -> float:
    """The outcome O (+1 or -1), or with `algorithm.reward: score` the environment's score, and the shaping's terms.

    With `algorithm.truncated: wrong` an episode that a limit ended has the outcome -1, or the score 0. Raises
    ConfigError.
    """
    shaped = sum(shaping(trajectory, config).values())
    if config.reward == "outcome":
        return (1.0 if is_solved(trajectory, config) else -1.0) + shaped
    if trajectory.status is Status.TRUNCATED and config.truncated == "wrong":
        return shaped
    if trajectory.score is None or trajectory.score.reward is None:
        raise ConfigError(
            f"algorithm.reward: found score, but the environment of task {trajectory.task_id} gives no reward "
            "(Score.reward is None); expected outcome, or a domain whose environments give one"
        )
    return trajectory.score.reward + shaped


def advantage_rule(config: AlgorithmConfig) -> Rule:
    """The rule that a configuration names, with its options bound. Raises ConfigError naming the key."""
    rule: Any = RULES.get(config.advantage) or load_object("algorithm.advantage", config.advantage, RULES)
    return bind_options("algorithm.options", rule, config.options)


def step_index(group: Group, config: AlgorithmConfig) -> None:
    """z-score of R_i over the episodes that reached the same step index (arXiv 2602.02488).

    A step index that one episode alone reached has no baseline: advantage 0.
    """
    for turns in zip_longest(*(t.turns for t in group.valid)):
        _compare([(turn, turn.reward) for turn in turns if turn])


def step_index_absorbing(group: Group, config: AlgorithmConfig) -> None:
    """`step_index`, but a finished episode stays in the later baselines with its final feedback.

    Otherwise late baselines hold failures alone, because successes end early, and z-scores there compare step signals.
    """
    finals = [next((turn.reward for turn in reversed(t.turns) if turn.reward is not None), None) for t in group.valid]
    for turns in zip_longest(*(t.turns for t in group.valid)):
        _compare([(turn, turn.reward if turn else final) for turn, final in zip(turns, finals, strict=True)])


def separate(group: Group, config: AlgorithmConfig, *, step_discount: float = 0.0) -> None:
    """Outcome and step signal, each standardised over the episodes that reached the same step index, then added with
    their weights.

    Each counts by its weight, whatever its spread. At an index that failures alone reach, the outcome's part is 0: a
    z-score over all episodes would push down every token of their long tails, and unlikely tokens would gain by it.

    `step_discount` (gamma, 0 to 1) adds later signals to a step's own: sum over k >= i of gamma^(k-i) mean_j S_kj. A
    finished episode keeps its last signal (`lasting`). With gamma = 0 a weak policy learns what is seldom wrong, such
    as to go on searching, rather than what leads on.
    """
    _check_range("step_discount", step_discount)
    episodes, longest = [], longest_of(group)
    for t in group.valid:
        to_go = discounted(lasting([turn.signal for turn in t.turns], longest, step_discount), step_discount)
        episodes.append([(turn, t.reward or 0.0, signal) for turn, signal in zip(t.turns, to_go, strict=True)])
    for entries in zip_longest(*episodes):
        reached = [entry for entry in entries if entry and entry[0].reward is not None]
        outcomes = standardise([outcome for _, outcome, _ in reached])
        signals = standardise([signal for _, _, signal in reached])
        for (turn, _, _), outcome, signal in zip(reached, outcomes, signals, strict=True):
            turn.advantage = float(config.outcome_weight * outcome + config.step_weight * signal)


def process(group: Group, config: AlgorithmConfig, *, step_discount: float = 0.0) -> None:
    """z-score of the episode's reward over the group, plus lambda times that of a turn's step signal among all turns of
    the group (GRPO with process supervision, arXiv 2402.03300, section 4.1.3).

    Where all episodes fail at the same step index, rules that compare turns of one index see no difference. This one
    pushes the failing step down and those before it up, so a group without a success teaches as well.

    `step_discount` (gamma, 0 to 1) adds the z-scores of later turns: sum over k >= i of gamma^(k-i) z_k; 1 is that
    paper's choice, 0 credits each step with its own signal alone. A finished episode keeps its last one (`lasting`),
    which is ours. Turns without a signal take no part, unless lambda is 0.
    """
    _check_range("step_discount", step_discount)
    judged = [turn for t in group.valid for turn in t.turns if turn.reward is not None]
    steps = standardise([turn.signal or 0.0 for turn in judged])
    of_turn = {id(turn): float(z) for turn, z in zip(judged, steps, strict=True)}
    longest = longest_of(group)
    for t, outcome in zip(group.valid, standardise([t.reward or 0.0 for t in group.valid]), strict=True):
        signals = lasting([of_turn.get(id(turn)) for turn in t.turns], longest, step_discount)
        to_go = discounted(signals, step_discount)
        for turn, signal in zip(t.turns, to_go, strict=True):
            if turn.reward is not None:
                turn.advantage = float(config.outcome_weight * outcome + config.step_weight * signal)


def trajectory(group: Group, config: AlgorithmConfig) -> None:
    """z-score of the episode's reward over the group, the same for all its turns (GRPO, arXiv 2402.03300)."""
    for t, z in zip(group.valid, standardise([t.reward or 0.0 for t in group.valid]), strict=True):
        for turn in t.turns:
            turn.advantage = float(z)


def leave_one_out(group: Group, config: AlgorithmConfig) -> None:
    """The episode's reward less the mean of the other episodes' rewards (RLOO, arXiv 2402.14740); 0 for a lone one."""
    rewards = [t.reward or 0.0 for t in group.valid]
    for t, reward in zip(group.valid, rewards, strict=True):
        others = (sum(rewards) - reward) / (len(rewards) - 1) if len(rewards) > 1 else reward
        for turn in t.turns:
            turn.advantage = reward - others


def same_state(group: Group, config: AlgorithmConfig, *, discount: float = 0.95, weight: float = 1.0) -> None:
    """z-score of the episode's reward, plus `weight` times that of a turn's discounted return among the turns of the
    group that began in the same state (GiGPO, arXiv 2505.10978).

    `turn_rewards` says what a turn earns; `discount` is gamma. Turns whose state no other turn shares get the first
    part alone.
    """
    _check_range("discount", discount)
    trajectory(group, config)
    for members in _by_state(group, config, discount).values():
        for (turn, _), z in zip(members, standardise([value for _, value in members]), strict=True):
            turn.advantage = (turn.advantage or 0.0) + weight * float(z)


def grouped_gae(group: Group, config: AlgorithmConfig, *, discount: float = 0.95, lam: float = 0.95) -> None:
    """Generalised advantage estimation with values from the group's own rollouts (GAGPO, arXiv 2605.13217).

    The value of a state is the mean discounted return of the group's turns that began in it, 0 after the last turn.
    TD errors r_t + gamma V(s_t+1) - V(s_t) are summed with (gamma lambda)^k and standardised over the group's turns.
    """
    _check_range("discount", discount)
    _check_range("lam", lam)
    states = _by_state(group, config, discount)
    value = {state: sum(v for _, v in members) / len(members) for state, members in states.items()}
    turns, advantages = [], []
    for t, rewards in zip(group.valid, turn_rewards(group, config, discount), strict=True):
        ahead = [*(value[turn.state] for turn in t.turns[1:]), 0.0]
        errors = [r + discount * v - value[u.state] for r, v, u in zip(rewards, ahead, t.turns, strict=True)]
        turns += t.turns
        advantages += discounted(errors, discount * lam)
    for turn, z in zip(turns, standardise(advantages), strict=True):
        turn.advantage = float(z)


def segments(group: Group, config: AlgorithmConfig) -> None:
    """By how much a turn's segment changed the chance of success, as the tree of the group's episodes tells
    (`branches.Tree`), over the standard deviation of the episodes' rewards; plus lambda times the z-score of the turn's
    step signal among all turns of the group.

    Without branches it is `process`. With `rollout.num_branch` the turns before a state in which others begin share
    what those came to, and the episodes that begin there are compared with each other. Each turn was sampled once, and
    trains once. Turns without a signal take no part, unless lambda is 0.
    """
    tree = Tree(group.valid, lambda t: t.reward or 0.0)
    worths = tree.worths()
    spread = float(np.std([t.reward or 0.0 for t in tree.episodes.values()])) if worths else 0.0
    turns = [(turn, (t.index, i)) for t in group.valid for i, turn in enumerate(t.turns)]
    known = [(turn, worths[place]) for turn, place in turns if place in worths and turn.reward is not None]
    signals = standardise([turn.signal or 0.0 for turn, _ in known])
    for (turn, worth), signal in zip(known, signals, strict=True):
        outcome = worth / spread if spread > ZERO_SPREAD else 0.0
        turn.advantage = float(config.outcome_weight * outcome + config.step_weight * signal)


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        step_index,
        step_index_absorbing,
        separate,
        process,
        trajectory,
        leave_one_out,
        same_state,
        grouped_gae,
        segments,
    )
}


def discounted(values: Sequence[float], discount: float) -> list[float]:
    """sum over k >= i of discount^(k-i) values[k], for every i."""
    result, ahead = [], 0.0
    for value in reversed(values):
        ahead = value + discount * ahead
        result.append(ahead)
    return result[::-1]


def longest_of(group: Group) -> int:
    """Turns of the longest episode."""
    return max((len(t.turns) for t in group.valid), default=0)


def lasting(signals: Sequence[float | None], longest: int, discount: float) -> list[float]:
    """Signals, unknown ones as 0. The last known one counts again, discounted, for each turn that the longest episode
    has more.

    Steps of a weak policy are mostly bad. If what comes after the end counted 0, a wrong end would look better than the
    try that went on, and the policy would learn to give up.
    """
    known = [signal or 0.0 for signal in signals]
    if known:
        last = next((signal for signal in reversed(signals) if signal is not None), 0.0)
        known[-1] += last * sum(discount**k for k in range(1, longest - len(signals) + 1))
    return known


def turn_rewards(group: Group, config: AlgorithmConfig, discount: float) -> list[list[float]]:
    """Each turn's own reward, for returns that are discounted: lambda times its step signal (`lasting`). The last turn
    also gets w_o times by how much the episode's reward is above that of a failure, or of the group's worst episode if
    that is lower.

    A failure that earned less than 0 would be the better the later it comes, and teach the policy never to end an
    episode. GiGPO's published code gives failures 0, too.
    """
    rewards = [t.reward or 0.0 for t in group.valid]
    failure, longest = min([-1.0 if config.reward == "outcome" else 0.0, *rewards]), longest_of(group)
    found = []
    for t, reward in zip(group.valid, rewards, strict=True):
        own = [config.step_weight * s for s in lasting([turn.signal for turn in t.turns], longest, discount)]
        if own:
            own[-1] += config.outcome_weight * (reward - failure)
        found.append(own)
    return found


def _by_state(group: Group, config: AlgorithmConfig, discount: float) -> dict[str, list[tuple[Turn, float]]]:
    """The turns that began in each state, with their discounted returns."""
    found: dict[str, list[tuple[Turn, float]]] = defaultdict(list)
    for t, rewards in zip(group.valid, turn_rewards(group, config, discount), strict=True):
        for turn, value in zip(t.turns, discounted(rewards, discount), strict=True):
            found[turn.state].append((turn, value))
    return found


def _compare(rewarded: Sequence[tuple[Turn | None, float | None]]) -> None:
    """Standardise rewards; None as the turn counts in the baseline only, a reward of None not at all."""
    known = [(turn, reward) for turn, reward in rewarded if reward is not None]
    for (turn, _), z in zip(known, standardise([reward for _, reward in known]), strict=True):
        if turn is not None:
            turn.advantage = float(z)


def _check_range(option: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ConfigError(f"algorithm.options.{option}: found {value}, expected a number from 0 to 1")
