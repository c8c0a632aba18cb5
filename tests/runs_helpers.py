"""Small configurations of the closed loop for tests that run it whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rlanything.config.load import to_yaml
from rlanything.config.schema import AdaptationConfig, Config, DatasetConfig, EngineConfig, LearnerConfig, ModelConfig
from rlanything.runs.metrics import read_jsonl

NUM_DEVICE = int(os.environ.get("RLANYTHING_TEST_DEVICES", "0"))  # 1: runs of one machine have an accelerator
TIMED = ("seconds/", "tokens_per_s", "busy_s", "peak_memory", "train_s", "step_s", "env_s", "phase/", "mfu")
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
BREAKING = """
import os, resource, signal, sys
from rlanything.loop import Loop
real = Loop.{phase}
def breaking(self, *args, **kwargs):
    if self.step + ("{phase}" not in ("record", "save")) == {step}: {fault}
    return real(self, *args, **kwargs)
Loop.{phase} = breaking
sys.argv = sys.argv[1:]
exec(open(sys.argv[0]).read())
"""


def small_config(games: Path, model: Path, output: Path, name: str, engine: str = "transformers") -> Config:
    """2 tasks x 2 episodes x 3 turns, m = 2, both learners; 4 steps, a checkpoint each, an evaluation every second."""
    options = {"show_actions": "here"}
    config = Config(dataset=DatasetConfig(path=str(games), prompt="compact", options=options, num_task=6))
    experiment, rollout = config.experiment, config.rollout
    experiment.name, experiment.output_dir = name, str(output)
    experiment.total_step, experiment.eval_every, experiment.save_every, experiment.num_thread = 4, 2, 1, 1
    experiment.num_device = NUM_DEVICE
    rollout.num_trial, rollout.num_rollout_per_trial = 2, 2
    rollout.max_interaction_step, rollout.max_response_tokens = 3, 16
    config.reward.num_evaluation, config.reward.max_response_tokens = 2, 12
    config.algorithm.band = config.reward.band = [0.0, 1.0]
    config.reward.group = "task"
    config.adaptation = AdaptationConfig(max_response_tokens=16, num_try=2)
    config.evaluation.num_task = 2
    for role in ("policy", "reward", "rewriter"):
        setattr(config.model, role, ModelConfig(path=str(model)))
        made = EngineConfig(
            kind=engine, dtype="float32", max_model_len=512, max_num_seqs=16, kv_cache_gb=0.05, enforce_eager=True
        )
        made.gpu_memory_utilization = 0.1
        setattr(config.engine, role, made)
    for learner in ("policy", "reward"):
        made = LearnerConfig(lr=1e-3, num_update=2, dtype="float32", micro_batch_tokens=512, schedule="linear")
        made.zero_stage = NUM_DEVICE  # an accelerator that is handed over wants at least 1
        setattr(config.training, learner, made)
    return config


def spread_config(games: Path, model: Path, output: Path, name: str, engine: str = "transformers") -> Config:
    """The same on three nodes, two steps; two policy replicas, two learner ranks (ZeRO 2, 3), two environment hosts."""
    config = small_config(games, model, output, name, engine)
    config.experiment.num_node, config.experiment.num_device, config.experiment.total_step = 3, 0, 2
    config.engine.policy.num_replica = 2
    config.cluster.num_learner, config.cluster.num_env_host = 2, 2
    config.training.policy.zero_stage, config.training.reward.zero_stage = 2, 3
    return config


def command(config, folder: Path, script: str = "alfworld_rl.py") -> list[str]:
    """The command line that runs a configuration in a process of its own."""
    file = folder / "config_for_test.yaml"
    file.write_text(to_yaml(config))
    return [sys.executable, str(Path(__file__).parents[1] / script), f"config={file}"]


def broken(line: list[str], phase: str, step: int, fault: str = KILLED) -> subprocess.CompletedProcess:
    """The run of a command line to which something happens as a phase of a step begins."""
    program = BREAKING.format(phase=phase, step=step, fault=fault)
    return subprocess.run([line[0], "-c", program, *line[1:]], timeout=300, check=False, capture_output=True, text=True)


def figures(run: Path) -> list[dict[str, Any]]:
    """The run's records without what a clock says."""
    return [{k: v for k, v in r.items() if not any(t in k for t in TIMED)} for r in read_jsonl(run / "metrics.jsonl")]
