"""The learner refuses models whose attention or head it would compute differently from the engine."""

import errno
from types import SimpleNamespace

import pytest
import torch
from transformers import Gemma3Config, LlamaConfig, MistralConfig, Phi3Config, Qwen2Config

from rlanything.errors import LearnerError
from rlanything.learner.model import TreeModel
from rlanything.learner.trainable import check_positions, check_trainable


def test_models_with_a_sliding_window_are_refused_unless_it_spans_their_context():
    with pytest.raises(LearnerError, match="model m: found sliding_window=4096 in all layers"):
        check_trainable(MistralConfig(), "m")
    with pytest.raises(LearnerError, match="model m: found layers of kind sliding_attention"):
        check_trainable(Qwen2Config(use_sliding_window=True, max_window_layers=0), "m")
    check_trainable(MistralConfig(sliding_window=None), "m")
    check_trainable(MistralConfig(sliding_window=8192, max_position_embeddings=8192), "m")
    check_trainable(Qwen2Config(), "m")
    check_trainable(LlamaConfig(), "m")


def test_scaled_logits_are_refused():
    config = LlamaConfig()
    config.final_logit_softcapping = 30.0
    with pytest.raises(LearnerError, match="sets final_logit_softcapping"):
        check_trainable(config, "m")


def test_models_that_read_images_in_another_way_are_refused():
    with pytest.raises(LearnerError, match="Gemma3Config reads images in a way that the learner does not know"):
        check_trainable(Gemma3Config(), "gemma")


def test_heads_too_small_for_a_gpus_attention_are_refused_there_alone():
    small = LlamaConfig(hidden_size=32, num_attention_heads=4, head_dim=8)
    with pytest.raises(LearnerError, match="model m: its attention heads have 8 dimensions"):
        check_trainable(small, "m", on_accelerator=True)
    check_trainable(small, "m")
    check_trainable(LlamaConfig(), "m", on_accelerator=True)


def test_quantised_weights_are_refused():
    config = LlamaConfig()
    config.quantization_config = {"quant_method": "awq", "bits": 4}
    with pytest.raises(LearnerError, match=r"model m: its weights are quantised \(awq\).*use the model"):
        check_trainable(config, "m")


def test_a_config_that_cannot_be_written_again_is_found_before_the_first_checkpoint(monkeypatch):
    def refuse(self, folder):
        raise ValueError("top_p is only for sampling")

    monkeypatch.setattr(LlamaConfig, "save_pretrained", refuse)
    with pytest.raises(LearnerError, match="model m: .*config.json but cannot write it.*top_p is only for sampling"):
        check_trainable(LlamaConfig(), "m")


def test_a_rope_that_engine_and_learner_compute_differently_is_refused():
    long = {"rope_type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    phi = Phi3Config(rope_parameters=long | {"original_max_position_embeddings": 4096, "rope_theta": 1e4})
    check_positions(phi, "phi", 4096)
    with pytest.raises(LearnerError, match="found 8192, .*longrope.* set max_model_len=4096"):
        check_positions(phi, "phi", 8192)
    dynamic = LlamaConfig(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    with pytest.raises(LearnerError, match="rope_type=dynamic"):
        check_positions(dynamic, "llama", 64)
    check_positions(LlamaConfig(), "llama", 64)


def test_a_full_disk_is_no_fault_of_a_models_config(monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LlamaConfig, "save_pretrained", full)
    with pytest.raises(OSError, match="No space left"):
        check_trainable(LlamaConfig(), "m")


def test_the_cost_of_attention_is_known_for_a_model_without_grouped_heads():
    shape = SimpleNamespace(hidden_size=768, num_attention_heads=12)  # GPT-2 names neither key heads nor an MLP's width
    model = SimpleNamespace(device=torch.device("cpu"), lm=SimpleNamespace(config=SimpleNamespace()))
    model.lm.config.get_text_config = lambda: shape
    assert TreeModel.pairs_per_token.fget(model) > 0
