"""Tiny models with tokenizers, written once a session as real Hugging Face folders."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlanything.config.schema import LearnerConfig, ModelConfig
from rlanything.learner.deepspeed import Learner
from rlanything.types import Sample

VOCAB = 64
ARCHITECTURES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """Folders of tiny models by architecture, with random weights; only qwen3 ties its head."""
    root = tmp_path_factory.mktemp("models")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    folders: dict[str, Path] = {}
    for name, (config, model) in ARCHITECTURES.items():
        torch.manual_seed(0)
        # A GPU's FlexAttention needs heads of 16 at least.
        more = {"head_dim": 16} if name == "qwen3" else {"num_attention_heads": 2, "num_key_value_heads": 1}
        folders[name] = root / name
        model(config(**SIZES | more, tie_word_embeddings=name == "qwen3")).save_pretrained(folders[name])
        PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", eos_token="w2").save_pretrained(folders[name])
    return folders


@pytest.fixture(scope="session")
def large_vocabulary(model_folder, tmp_path_factory):
    """A model whose head has 2^13 x 32 weights."""
    folder = tmp_path_factory.mktemp("large") / "qwen3"
    shutil.copytree(model_folder["qwen3"], folder)
    torch.manual_seed(0)
    config = Qwen3Config(**SIZES | {"vocab_size": 1 << 13}, head_dim=16, tie_word_embeddings=False)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def make_sample():
    """make_sample(ids, trained positions, key, seed): random weights, advantages and logprobs at trained positions."""

    def make(ids, trained, key="", seed=0):
        rng = np.random.default_rng(seed)
        mask = np.zeros(len(ids))
        mask[list(trained)] = 1
        return Sample(
            ids=np.asarray(ids),
            weights=mask * rng.uniform(0.1, 1, len(ids)),
            advantages=mask * rng.normal(size=len(ids)),
            logprobs=mask * rng.uniform(-5, -1, len(ids)),
            key=key,
        )

    return make


@pytest.fixture
def make_learner(model_folder):
    """make_learner(architecture, total_update, seed, **LearnerConfig keys): learners that are closed after the test."""
    made = []

    def make(architecture="qwen3", total_update=100, seed=0, **keys):
        settings = {"lr": 1e-2, "num_update": 2, "kl_beta": 0.0, "dtype": "float32"} | keys
        model = ModelConfig(path=str(model_folder[architecture]))
        made.append(Learner(model, LearnerConfig(**settings), total_update, seed=seed))
        return made[-1]

    yield make
    for learner in made:
        learner.close()
