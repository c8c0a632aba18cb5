"""A small world, made once a session by the real makers: generated games and a tiny random model with its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest


@dataclass(frozen=True)
class World:
    """`games`: 24 training games, 6 of each evaluation split; `model`: a Qwen3 of 0.2M parameters that has seen enough
    demonstrations of all roles to write actions, scores and proposals in the right form."""

    games: Path
    model: Path


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> World:
    """Folders of games and model."""
    from make_tiny_models import make_model, make_tokenizer

    from rlanything.chat import Chat
    from rlanything.config import DatasetConfig, LearnerConfig, ModelConfig
    from rlanything.domains.alfworld.domain import AlfworldDomain
    from rlanything.domains.alfworld.export import write_packed
    from rlanything.domains.alfworld.generator import generate_games
    from rlanything.learner.deepspeed import Learner
    from rlanything.sft import encode

    root = tmp_path_factory.mktemp("world")
    games, model = root / "games", root / "model"
    for split, count in (("train", 24), ("eval_in_distribution", 6), ("eval_out_of_distribution", 6)):
        write_packed(games / f"{split}.jsonl.xz", generate_games(split, count, seed=3))
    dataset = DatasetConfig(path=str(games), prompt="compact", show_actions="here")
    domain = AlfworldDomain(dataset, "tiny", max_step=20)
    tokenizer = make_tokenizer(domain, 1024, {"policy": 60, "reward": 20, "rewriter": 30})
    make_model(tokenizer, hidden=64, layers=2, seed=0).save_pretrained(root / "untrained")
    tokenizer.save_pretrained(root / "untrained")
    chat = Chat(ModelConfig(str(root / "untrained")))
    config = LearnerConfig(lr=1e-2, num_update=1, dtype="float32", micro_batch_tokens=2048)
    learner = Learner(ModelConfig(str(root / "untrained")), config, 0, log_path=root / "learner.log")
    # An answer of the judge is three tokens, and the answers to one episode share its transcript: many cost little.
    shares = (("policy", 8), ("reward", 32), ("rewriter", 8))
    streams = [(domain.demonstrations(role, "train", 0), share) for role, share in shares]
    for _ in range(90):
        learner.update_supervised([encode(chat, c) for s, share in streams for c in islice(s, share)])
    learner.export(model)
    learner.close()
    return World(games, model)
