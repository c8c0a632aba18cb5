"""The whole loop on a problem whose answer is known: one room, one goal, one shortest plan."""

from itertools import islice
from pathlib import Path

import pytest
from alfworld_games.files import write_packed
from alfworld_games.generator import generate_games
from builders import config_of
from runs_helpers import small_config

from rlanything.algorithm.samples import sample_sets
from rlanything.config.schema import LearnerConfig, ModelConfig
from rlanything.conversations import encode
from rlanything.domains.alfworld.domain import AlfworldDomain
from rlanything.engines.chat import Chat
from rlanything.learner.deepspeed import Learner
from rlanything.runs.metrics import read_jsonl
from rlanything.train import train

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def shown_the_room(model: Path, folder: Path) -> Path:
    """The model after so few demonstrations in the room that it wins now and then."""
    domain = AlfworldDomain(config_of("alfworld", folder / "games", max_step=8, show_actions="here"))
    config = LearnerConfig(lr=3e-3, num_update=1, dtype="float32", micro_batch_tokens=2048)
    learner, chat = Learner(ModelConfig(path=str(model)), config, 0), Chat(ModelConfig(path=str(model)))
    demonstrations = domain.demonstrations("policy", "train", 0)
    for _ in range(8):
        learner.update_supervised(sample_sets([encode(chat, c) for c in islice(demonstrations, 8)]))
    learner.export(folder / "shown")
    learner.close()
    return folder / "shown"


def test_a_policy_that_seldom_wins_the_one_room_learns_to_win_it(world, tmp_path):
    easiest = min(generate_games("train", 24, seed=3), key=lambda game: len(game.data["walkthrough"]))
    for split in ("train", "eval_in_distribution", "eval_out_of_distribution"):
        write_packed(tmp_path / f"games/{split}.jsonl.xz", [easiest])
    config = small_config(tmp_path / "games", shown_the_room(world.model, tmp_path), tmp_path, "room")
    config.experiment.total_step, config.experiment.save_every = 60, 60
    config.dataset.num_task = 0
    config.rollout.num_trial, config.rollout.num_rollout_per_trial, config.rollout.max_interaction_step = 1, 64, 8
    config.reward.num_evaluation, config.algorithm.step_weight, config.adaptation.enabled = 0, 0.0, False
    config.training.policy.num_update, config.training.policy.lr, config.training.policy.kl_beta = 1, 1e-3, 0.0
    config.engine.policy.max_num_seqs = 64
    train(config)
    success = [r["success_rate"] for r in read_jsonl(tmp_path / "room/metrics.jsonl") if r["phase"] == "train"]
    print("success by step:", [round(s, 2) for s in success])
    assert success[0] < 0.5 and min(success[-3:]) > 0.9
