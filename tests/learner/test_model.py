"""Models whose attention or head the learner would compute otherwise than the engine that sampled are refused."""

import pytest
from transformers import LlamaConfig, MistralConfig, Qwen2Config

from rlanything.errors import LearnerError
from rlanything.learner.model import _check_trainable


def test_models_with_a_sliding_window_are_refused_unless_it_spans_their_context():
    with pytest.raises(LearnerError, match="model m: all its layers have sliding_window=4096; only full_attention"):
        _check_trainable(MistralConfig(), "m")
    with pytest.raises(LearnerError, match="model m: layers of kind sliding_attention"):
        _check_trainable(Qwen2Config(use_sliding_window=True, max_window_layers=0), "m")
    _check_trainable(MistralConfig(sliding_window=None), "m")
    _check_trainable(MistralConfig(sliding_window=8192, max_position_embeddings=8192), "m")
    _check_trainable(Qwen2Config(), "m")
    _check_trainable(LlamaConfig(), "m")


def test_scaled_logits_are_refused():
    config = LlamaConfig()
    config.final_logit_softcapping = 30.0
    with pytest.raises(LearnerError, match="sets final_logit_softcapping"):
        _check_trainable(config, "m")
