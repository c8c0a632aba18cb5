"""A plan tells the memory that a learner's passes take."""

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

from rlanything.config.schema import Config, LearnerConfig, ModelConfig
from rlanything.learner.model import TreeModel
from rlanything.learner.packing import build_trees, pack
from rlanything.plan.activations import VOCABULARY, activation_bytes, model_shape
from rlanything.plan.memory import GIB, copied_gib, model_size
from rlanything.plan.plan import make_plan
from rlanything.types import Sample


def test_activations_are_the_inputs_of_checkpointed_layers_and_one_layer_anew(tmp_path):
    shape = model_shape(ModelConfig(path="Qwen/Qwen2.5-14B-Instruct"), 14.8e9)
    assert not shape.known and 0.8 < shape.width * shape.layers / (5120 * 48) < 1.25
    (tmp_path / "config.json").write_text(
        '{"text_config": {"hidden_size": 5120, "num_hidden_layers": 48, "intermediate_size": 13824}}'
    )
    shape = model_shape(ModelConfig(path=str(tmp_path)), 1e9)
    assert shape.known and str(shape) == "48 layers of width 5120"
    config = LearnerConfig(dtype="bfloat16", micro_batch_tokens=32768, gradient_checkpointing=True)
    layer, logits = 32768 * (44 * 5120 + 4 * 2 * 13824), 12 * 2**27
    kept = 30 * 2**30  # 32,768 x 5,120 x 48 x 4 bytes
    assert activation_bytes(shape, config, True) == kept + layer + logits
    whole = config.model_copy(update={"gradient_checkpointing": False})
    assert activation_bytes(shape, whole, True) == 48 * layer + logits
    wide = layer + 32768 * 4 * 2 * 13824
    assert activation_bytes(shape, config.model_copy(update={"dtype": "float32"}), True) == kept + wide + logits
    tower = '"vision_config": {"hidden_size": 1152, "depth": 27, "intermediate_size": 4304}'
    (tmp_path / "config.json").write_text(
        f'{{"text_config": {{"hidden_size": 5120, "num_hidden_layers": 48, "intermediate_size": 13824}}, {tower}}}'
    )
    sees = model_shape(ModelConfig(path=str(tmp_path)), 1e9)
    patches = 32768 * (1152 * (27 * 4 + 44) + 4 * 2 * 4304)
    assert activation_bytes(sees, config, True) == kept + layer + patches + logits
    frozen = config.model_copy(update={"train_vision": False})
    assert activation_bytes(sees, frozen, True) == kept + layer + logits
    few = config.model_copy(update={"micro_batch_tokens": 8})
    assert activation_bytes(shape, few, True) == (kept + layer) / 4096 + 8 * VOCABULARY * 12
    on_cpu = config.model_copy(update={"micro_batch_tokens": 8, "dtype": "float32"})
    few_scores = 4 * (8 * 8 + 40 * 8 * 8 // 2)  # the mask, and the causal half of 40 heads' scores
    assert activation_bytes(shape, on_cpu, False) == (kept + wide) / 4096 + 8 * VOCABULARY * 12 + few_scores


def test_the_plan_counts_the_copy_that_the_small_engine_keeps_of_what_adapters_change(tmp_path):
    made = Qwen3Config(
        hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, vocab_size=64,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(made)
    model.save_pretrained(tmp_path)
    linear = sum(p.numel() for name, p in model.named_parameters() if ".layers." in name and p.ndim == 2)
    config = Config(model={"policy": {"path": str(tmp_path)}})
    config.engine.policy.kind, config.engine.policy.dtype = "transformers", "float32"
    size = model_size(config.model.policy)
    assert copied_gib(make_plan(config, learns=True), "policy", size) == 0
    config.training.policy.lora_rank = 8
    assert copied_gib(make_plan(config, learns=True), "policy", size) == 4 * linear / GIB
    assert copied_gib(make_plan(config, learns=False), "policy", size) == 0, "an evaluation loads no adapters"
    config.engine.policy.kind = "vllm"
    assert copied_gib(make_plan(config, learns=True), "policy", size) == 0


@pytest.mark.parametrize("kind", [Qwen2Config, Qwen3Config])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_plan_counts_what_a_pass_keeps(tmp_path, kind, dtype):
    made = kind(
        hidden_size=256, intermediate_size=1024, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1,
        head_dim=64, vocab_size=64,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(made).save_pretrained(tmp_path)
    paths = ModelConfig(path=str(tmp_path))
    config = LearnerConfig(dtype=dtype, micro_batch_tokens=512, gradient_checkpointing=False)
    model = TreeModel(paths, config, torch.device("cpu"))
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    shapes = {tuple(p.shape) for p in model.parameters()} | {tuple(p.shape[::-1]) for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and tuple(tensor.shape) not in shapes:  # nor casts of weights
            kept[storage.data_ptr()] = storage
        return tensor

    trained = np.r_[0.0, np.ones(512)]
    sample = Sample(np.arange(513) % 64, trained, trained, -trained)
    batch = pack(build_trees([sample], 512), 512)[0]
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model(batch, 1.0)
    found = sum(storage.nbytes() for storage in kept.values())
    assert 0.9 < activation_bytes(model_shape(paths, 0.0), config, False) / found < 1.3
