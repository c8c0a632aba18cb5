"""The whole configuration of a run. Every section has a model whose fields hold type, bounds, default and meaning.

The recipe's own words are kept (experiment, model, dataset, rollout, training, num_node, total_step, num_trial, ...).
"""

from __future__ import annotations

from rlanything.config.algorithm import AdaptationConfig, AlgorithmConfig, RewardConfig
from rlanything.config.models import (
    EngineConfig,
    EnginesConfig,
    LearnerConfig,
    ModelConfig,
    ModelsConfig,
    TrainingConfig,
)
from rlanything.config.run import (
    ClusterConfig,
    DatasetConfig,
    EvaluationConfig,
    ExperimentConfig,
    RolloutConfig,
    SandboxConfig,
)
from rlanything.config.section import Section

__all__ = [
    "AdaptationConfig",
    "AlgorithmConfig",
    "ClusterConfig",
    "Config",
    "DatasetConfig",
    "EngineConfig",
    "EnginesConfig",
    "EvaluationConfig",
    "ExperimentConfig",
    "LearnerConfig",
    "ModelConfig",
    "ModelsConfig",
    "RewardConfig",
    "RolloutConfig",
    "SandboxConfig",
    "TrainingConfig",
]


class Config(Section):
    """Everything that a run depends on."""

    experiment: ExperimentConfig = ExperimentConfig()
    """The run."""
    model: ModelsConfig = ModelsConfig()
    """The models, one for each role."""
    engine: EnginesConfig = EnginesConfig()
    """The inference engines, one for each role."""
    dataset: DatasetConfig = DatasetConfig()
    """The tasks."""
    sandbox: SandboxConfig = SandboxConfig()
    """The sandbox for programs."""
    rollout: RolloutConfig = RolloutConfig()
    """How the policy plays."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """The policy's algorithm."""
    reward: RewardConfig = RewardConfig()
    """The reward model's evaluations and feedback."""
    adaptation: AdaptationConfig = AdaptationConfig()
    """The adaptation of tasks."""
    training: TrainingConfig = TrainingConfig()
    """The learners, one for each role that trains."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """How the policy is measured."""
    cluster: ClusterConfig = ClusterConfig()
    """Several devices and machines."""
    dry_run: bool = False
    """Print the resolved configuration and the plan, and start nothing."""
