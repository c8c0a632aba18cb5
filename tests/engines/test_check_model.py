"""What an engine asks of a model before anything is loaded."""

import shutil
import sys

import pytest
from transformers import AutoConfig, MistralConfig

from rlanything.config.schema import EngineConfig, ModelConfig
from rlanything.engines import check_model, make_engine
from rlanything.engines.base import EngineError
from rlanything.engines.small.engine import _check_supported


def test_tensor_parallelism_must_divide_the_heads(world):
    model = ModelConfig(path=str(world.model))
    heads = AutoConfig.from_pretrained(world.model).num_attention_heads
    check_model(model, EngineConfig(tensor_parallel_size=heads))
    with pytest.raises(EngineError, match=f"tensor_parallel_size={heads + 1} does not divide the {heads} attention"):
        check_model(model, EngineConfig(tensor_parallel_size=heads + 1))


def test_tensor_parallelism_must_fit_the_key_value_heads(world, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(world.model, model)
    config = AutoConfig.from_pretrained(model)
    config.num_attention_heads, config.num_key_value_heads = 12, 4
    config.save_pretrained(model)
    for size in (2, 4, 12):
        check_model(ModelConfig(path=str(model)), EngineConfig(tensor_parallel_size=size))
    for size in (3, 6):
        with pytest.raises(EngineError, match=f"tensor_parallel_size={size} neither divides the 4 key-value heads"):
            check_model(ModelConfig(path=str(model)), EngineConfig(tensor_parallel_size=size))


def test_the_small_engine_refuses_a_window_below_its_context():
    _check_supported(MistralConfig(), 4096)
    with pytest.raises(EngineError, match="sliding_attention.*window 4096.*expected full attention over max_model_len"):
        _check_supported(MistralConfig(), 4097)


def test_vllm_that_is_not_installed_is_named(world, tmp_path, monkeypatch):
    for module in ("", ".asynchronous", ".in_process"):  # each of which another test may have imported
        monkeypatch.setitem(sys.modules, f"rlanything.engines.vllm{module}", None)
    with pytest.raises(EngineError, match="engine.*kind=vllm: .* set kind=transformers"):
        make_engine(ModelConfig(path=str(world.model)), EngineConfig(kind="vllm"), 0, tmp_path / "log")
