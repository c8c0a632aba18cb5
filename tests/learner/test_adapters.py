"""LoRA: only the adapters are trained, sent and saved, and learner, engine and export agree on the model they make."""

import asyncio

import numpy as np
import pytest
import torch
from learner_helpers import logprobs_in_one_row, random_samples
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlanything.algorithm.samples import sample_sets
from rlanything.config.schema import EngineConfig, ModelConfig
from rlanything.engines.base import SamplingParams
from rlanything.engines.small.engine import TransformersEngine
from rlanything.learner.export import frozen_weights
from rlanything.types import Sample
from rlanything.weights.lora import AdapterError, merged


@pytest.fixture
def make_adapted(make_learner):
    """make_adapted(**keys): a learner with adapters of rank 4."""
    return lambda **keys: make_learner("qwen2", **{"lr": 2e-2, "num_update": 1, "lora_rank": 4} | keys)


def frozen_weights_of(learner):
    return {name: tensor.clone() for name, tensor in frozen_weights(learner.model.lm, learner.config)}


@pytest.mark.parametrize("keys", [{}, {"zero_stage": 3}, {"dtype": "bfloat16"}], ids=str)
def test_only_the_adapters_learn(make_adapted, keys):
    learner = make_adapted(**keys)
    before = frozen_weights_of(learner)
    assert {name.rpartition(".")[2] for name, _ in learner.weights()} == {"lora_A", "lora_B"}  # what engines receive
    losses = [learner.update_supervised(sample_sets(random_samples(0)))["loss"] for _ in range(12)]
    assert losses[-1] < losses[0] - 0.3
    assert all(torch.equal(p, before[name]) for name, p in frozen_weights_of(learner).items())


def test_the_frozen_model_is_the_reference_of_the_kl(make_adapted):
    learner = make_adapted(kl_beta=0.1)
    first, second = (learner.update(sample_sets(random_samples(step))) for step in range(2))
    assert first["kl_reference"] == 0 and second["kl_reference"] > 0
    assert all(p.requires_grad for name, p in learner.model.lm.named_parameters() if "lora_" in name)


@pytest.mark.parametrize("zero_stage", [0, 3])
def test_save_and_load_continue_bit_for_bit(make_adapted, tmp_path, zero_stage):
    learner = make_adapted(zero_stage=zero_stage)
    learner.update(sample_sets(random_samples(0)))
    learner.save(tmp_path / "state")
    files = [load_file(file) for file in (tmp_path / "state").glob("*.safetensors")]
    assert all("lora_" in name for file in files for name in file)
    resumed = make_adapted(zero_stage=zero_stage, seed=9)
    resumed.load(tmp_path / "state")
    for one in (learner, resumed):
        one.update(sample_sets(random_samples(1)))
    assert learner.checksum(torch.float32) == resumed.checksum(torch.float32)


def test_a_checkpoint_of_another_rank_is_refused(make_adapted, tmp_path):
    make_adapted(lora_rank=8).save(tmp_path / "state")
    with pytest.raises(ValueError, match="lora_A.default.weight: found 256 elements, expected 128"):
        make_adapted().load(tmp_path / "state")


def test_engine_export_and_learner_mean_the_same_model(make_adapted, model_folder, tmp_path):
    learner = make_adapted()
    for step in range(3):
        learner.update(sample_sets(random_samples(step)))
    config = EngineConfig(kind="transformers", dtype="float32", max_model_len=256, kv_cache_gb=0.01)
    engine = TransformersEngine(ModelConfig(path=str(model_folder["qwen2"])), config, 0, tmp_path)
    for version in (1, 2):  # the second load must replace the first one's adapters
        engine.load_weights(version, learner.weights(torch.float32))
    assert engine.checksum() == learner.checksum(torch.float32)
    learner.export(tmp_path / "model")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    for name, parameter in exported.named_parameters():
        torch.testing.assert_close(engine.model.get_parameter(name), parameter, rtol=0, atol=1e-6)

    prompt = [5, 6, 7, 8]
    [completion] = asyncio.run(engine.generate(prompt, SamplingParams(seed=0, max_tokens=12)))
    ids, mask = np.array(prompt + completion.token_ids), np.r_[np.zeros(4), np.ones(len(completion.token_ids))]
    logprobs = logprobs_in_one_row(learner, [Sample(ids, mask, mask, mask)])
    assert logprobs.numpy() == pytest.approx(completion.logprobs, abs=2e-5)


def test_adapters_of_weights_that_the_model_lacks_are_refused():
    adapters = [("layer.lora_A", torch.ones(2, 3)), ("layer.lora_B", torch.ones(4, 2))]
    [(_, weight)] = merged([("layer.weight", torch.zeros(4, 3))], adapters)
    assert torch.equal(weight, torch.full((4, 3), 2.0))
    with pytest.raises(AdapterError, match="layer.lora_A"):
        list(merged([("other.weight", torch.zeros(4, 3))], adapters))
