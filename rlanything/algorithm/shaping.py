"""Terms that an episode's reward gains or loses by its calls and its length, besides its outcome. Pure.

Source: DemyAgent (arXiv 2510.11701), equation 8 and its code; the penalty of length is DAPO's (arXiv 2503.14476).
"""

from rlanything.config.schema import AlgorithmConfig
from rlanything.types import Status, Trajectory, Turn

CALL = "call"  # the kind of turns that call a tool
UNREADABLE = "unreadable"  # the kind of turns without a call that can be read, and the verdict on each such call
NO_CALLS_LEFT = "no_calls_left"  # the verdict on a call that was refused


def shaping(trajectory: Trajectory, config: AlgorithmConfig) -> dict[str, float]:
    """The terms by their names, those that a configuration asks for."""
    terms = {}
    if config.call_bonus:
        terms["calls"] = call_bonus(trajectory, config)
    if config.overlong_limit:
        terms["length"] = overlong_penalty(trajectory, config)
    if config.turn_cost:
        terms["turns"] = -config.turn_cost * len(trajectory.turns) if is_solved(trajectory, config) else 0.0
    return terms


def is_solved(trajectory: Trajectory, config: AlgorithmConfig) -> bool:
    """Is an episode rewarded as solved? Not if a limit ended it and `algorithm.truncated` is wrong."""
    return trajectory.success and not (trajectory.status is Status.TRUNCATED and config.truncated == "wrong")


def call_bonus(trajectory: Trajectory, config: AlgorithmConfig) -> float:
    """`call_bonus` for each turn with a call that was executed, `call_bonus_max` at most."""
    if is_solved(trajectory, config) and config.call_bonus_on == "wrong":
        return 0.0
    bonus = config.call_bonus * sum(map(_has_executed_call, trajectory.turns))
    return max(-config.call_bonus_max, min(config.call_bonus_max, bonus))


def _has_executed_call(turn: Turn) -> bool:
    """True if a call of the turn was executed; a domain that gives no verdicts executes all calls."""
    return turn.kind == CALL and (not turn.results or any(r not in (UNREADABLE, NO_CALLS_LEFT) for r in turn.results))


def overlong_penalty(trajectory: Trajectory, config: AlgorithmConfig) -> float:
    """0 up to `overlong_limit` - `overlong_buffer` tokens, then linearly down to -`overlong_penalty` at the limit, and
    further beyond it."""
    if not config.overlong_limit:
        return 0.0
    beyond = num_tokens(trajectory) - (config.overlong_limit - config.overlong_buffer)
    return -config.overlong_penalty * max(0.0, beyond / config.overlong_buffer)


def num_tokens(trajectory: Trajectory) -> int:
    """Tokens after the first prompt: responses and, if every prompt continues the last one, what answered them."""
    if not trajectory.turns:
        return 0
    first, last = trajectory.turns[0], trajectory.turns[-1]
    grown = len(last.prompt.ids) + len(last.response_ids) - len(first.prompt.ids)
    return max(grown, sum(len(turn.response_ids) for turn in trajectory.turns))
