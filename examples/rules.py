"""An advantage rule of one's own; docs/your-own-algorithm.md explains it."""

# [rloo]
from rlanything.config.schema import AlgorithmConfig
from rlanything.types import Group


def my_rloo(group: Group, config: AlgorithmConfig, *, scale: float = 1.0) -> None:
    """The episode's reward against the mean of the others of its task."""
    rewards = [trajectory.reward for trajectory in group.valid]
    for trajectory in group.valid:
        others = (sum(rewards) - trajectory.reward) / max(1, len(rewards) - 1)
        for turn in trajectory.turns:
            turn.advantage = scale * (trajectory.reward - others)


# [/rloo]
