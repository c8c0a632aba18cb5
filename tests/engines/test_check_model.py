"""What an engine asks of a model before anything is loaded."""

import pytest
from transformers import AutoConfig

from rlanything.config import EngineConfig, ModelConfig
from rlanything.engines import check_model
from rlanything.engines.base import EngineError


def test_tensor_parallelism_must_divide_the_heads(world):
    model = ModelConfig(str(world.model))
    heads = AutoConfig.from_pretrained(world.model).num_attention_heads
    check_model(model, EngineConfig(tensor_parallel_size=heads))
    with pytest.raises(EngineError, match=f"tensor_parallel_size={heads + 1} does not divide the {heads} attention"):
        check_model(model, EngineConfig(tensor_parallel_size=heads + 1))
