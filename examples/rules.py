"""Advantage rules of one's own; docs/your-own-algorithm.md explains them."""

# [rloo]
from collections.abc import Sequence

from rlanything.config.schema import AlgorithmConfig
from rlanything.types import Group


def my_rloo(groups: Sequence[Group], config: AlgorithmConfig, *, scale: float = 1.0) -> None:
    """The episode's reward against the mean of the others of its task."""
    for group in groups:
        rewards = [trajectory.reward for trajectory in group.valid]
        for trajectory in group.valid:
            others = (sum(rewards) - trajectory.reward) / max(1, len(rewards) - 1)
            for turn in trajectory.turns:
                turn.advantage = scale * (trajectory.reward - others)


# [/rloo]
# [batch]
import numpy as np  # noqa: E402


def batch_whitened(groups: Sequence[Group], config: AlgorithmConfig) -> None:
    """R_i standardised over all turns of the step, as REINFORCE++ (arXiv 2501.03262) does with returns."""
    turns = [turn for group in groups for t in group.valid for turn in t.turns if turn.reward is not None]
    rewards = np.array([turn.reward for turn in turns])
    for turn, reward in zip(turns, rewards, strict=True):
        turn.advantage = float((reward - rewards.mean()) / (rewards.std() + 1e-8))


# [/batch]
