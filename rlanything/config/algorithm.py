"""Sections of the algorithm (paper arXiv 2602.02488): credit of the policy, feedback of the reward model, adaptation of
tasks."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from rlanything.config.section import Band, Section, Share


class AlgorithmConfig(Section):
    """The policy's algorithm: the advantage of every turn, and the tasks that train."""

    advantage: str = "step_index"
    """Advantage rule: step_index (the paper's), step_index_absorbing, separate, trajectory (GRPO), or a function of
    yours as module:function."""
    options: dict[str, Any] = {}
    """Keyword arguments of the advantage rule."""
    reward: Literal["outcome", "score"] = "outcome"
    """Reward of an episode: `outcome` is +1 or -1, `score` is the environment's own number."""
    outcome_weight: NonNegativeFloat = 1.0
    """Weight of the episode's reward in the integrated feedback (w_o in the paper)."""
    step_weight: NonNegativeFloat = 1.0
    """Weight of the step signal in the integrated feedback (lambda in the paper)."""
    negative_weight: NonNegativeFloat = 1.0
    """Factor of the advantages below 0. 1 is the paper's."""
    band: Band = [0.125, 0.875]
    """The policy trains on tasks whose accuracy lies in this band, bounds included."""


class RewardConfig(Section):
    """The reward model: its evaluations, and the feedback that it trains on."""

    num_evaluation: NonNegativeInt = 3
    """Evaluations of each turn (m in the paper), or unit tests of each task. 0 uses no reward model."""
    max_response_tokens: PositiveInt = 512
    """Longest evaluation [tokens]."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature."""
    consistency: Literal["feedback", "relative", "tests"] = "feedback"
    """What an evaluation earns. `feedback`: agreement with the integrated feedback R (the paper). `relative`: agreement
    with R against its mean over the task. `tests`, for coding: a unit test earns the wrong programs that it tells from
    the correct ones (the paper)."""
    step_tests: Literal["valid_only", "all"] = "valid_only"
    """Unit tests that count in the step signal of coding: those that every correct program passes, or all."""
    group: Literal["step", "task"] = "step"
    """Evaluations that share a baseline: those of one step (the paper), or of one task."""
    unparsable_reward: float = -3.0
    """Feedback of an evaluation without a score, before the z-score. It should be below that of any vote."""
    band: Band = [0.2, 0.8]
    """The reward model trains on tasks whose accuracy lies in this band, bounds included."""


class AdaptationConfig(Section):
    """The adaptation of tasks to the policy's ability."""

    enabled: bool = True
    """Have the rewriter propose variants of tasks."""
    alpha_low: Share = 0.2
    """A task whose accuracy is below gets an easier variant."""
    alpha_high: Share = 0.8
    """A task whose accuracy is above gets a harder variant."""
    num_try: PositiveInt = 8
    """Proposals sampled for each task."""
    max_candidate: NonNegativeInt = 4
    """Candidates that a step plays for a verdict, besides its num_trial active tasks."""
    max_response_tokens: PositiveInt = 512
    """Longest proposal [tokens]."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature."""
