"""What one process would have learnt from the samples of a run that was spread over many."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from rlanything.config.schema import Config
from rlanything.learner.deepspeed import Learner
from rlanything.rollout.digest import training_sets
from rlanything.runs.store import read_groups


def assert_trained_as_one_process(config: Config, run: Path) -> None:
    """Both models of a finished run moved, and to where one process moves them with the run's own samples."""
    for role, temperature in (("policy", config.rollout.temperature), ("reward", config.reward.temperature)):
        alone = replay(config, run, role, temperature)
        start = load_file(Path(config.model.of(role).path) / "model.safetensors")
        last = run / f"checkpoints/step_{config.experiment.total_step:06d}"
        spread_out = load_file(last / f"{role}/hf/model.safetensors")
        moved = torch.cat([(alone[k] - start[k]).flatten() for k in start])
        apart = torch.cat([(alone[k] - spread_out[k]).flatten() for k in start])
        assert 0 < moved.norm() and apart.norm() < 0.01 * moved.norm(), role


def replay(config: Config, run: Path, role: str, temperature: float) -> dict[str, torch.Tensor]:
    """The weights of one process that trains on the very samples of the run."""
    training = config.training.of(role)
    training.zero_stage = 0
    total = config.experiment.total_step * training.num_update
    learner = Learner(config.model.of(role), training, total, temperature, config.experiment.seed)
    for step in range(1, config.experiment.total_step + 1):
        groups = read_groups(run / f"rollouts/step_{step:06d}.parquet", {})
        learner.update([one for group in groups for one in training_sets(group, config, role)])
    weights = {name: tensor.clone() for name, tensor in learner.weights()}
    learner.close()
    return weights
