"""Selects the episodes of a group that the policy learns from. Pure."""

from collections.abc import Sequence

from rlanything.algorithm.shaping import is_solved
from rlanything.config.schema import AlgorithmConfig
from rlanything.types import Group, Status, Trajectory, Turn, is_passed


def selected(group: Group, config: AlgorithmConfig) -> list[Trajectory]:
    """The valid episodes that enter the baselines and the loss, as `algorithm.truncated` and `algorithm.keep` say."""
    episodes = group.valid
    if config.truncated == "drop":
        episodes = [t for t in episodes if t.status is not Status.TRUNCATED]
    return resample_on_correct(episodes, config) if config.keep else episodes


def resample_on_correct(episodes: Sequence[Trajectory], config: AlgorithmConfig) -> list[Trajectory]:
    """`algorithm.keep` of the episodes, in order: the share of solved ones stays, and of these the cleanest are kept.

    So a policy that reaches the answer over errors is not rewarded for the errors, while its failures stay as various
    as they are. Source: GRPO-RoC (rStar2-Agent, arXiv 2508.20722), which draws the solved ones at random with the
    inverse of their faults as weights; here the ones with the smallest share of faulty turns are taken. Episodes of a
    group are exchangeable, so the first ones of equals, and the first failed ones, are a fair draw.
    """
    keep = config.keep
    if len(episodes) <= keep:
        return list(episodes)
    solved = [t for t in episodes if is_solved(t, config)]
    failed = [t for t in episodes if not is_solved(t, config)]
    num_solved = round(keep * len(solved) / len(episodes))
    if solved and failed and keep > 1:  # rounding must not leave a group without a difference
        num_solved = min(max(num_solved, 1), keep - 1)
    kept = {id(t) for t in [*sorted(solved, key=fault_share)[:num_solved], *failed[: keep - num_solved]]}
    return [t for t in episodes if id(t) in kept]


def fault_share(trajectory: Trajectory) -> float:
    """The share of turns that were invalid, or in which a check, such as the run of a call, did not pass."""
    return sum(map(_is_faulty, trajectory.turns)) / max(1, len(trajectory.turns))


def is_void(trajectory: Trajectory) -> bool:
    """True if a turn of the episode holds no action (void turns of SimpleTIR, arXiv 2509.02479)."""
    return any(turn.action is None for turn in trajectory.turns)


def _is_faulty(turn: Turn) -> bool:
    return turn.invalid or not all(map(is_passed, turn.results))
