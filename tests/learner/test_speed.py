"""What makes updates fast on accelerators changes nothing that is learned, as far as a CPU can show."""

import gc
import shutil
import weakref

import pytest
import torch
from learner_helpers import random_samples, weights_of

from rlanything.algorithm.samples import sample_sets
from rlanything.errors import LearnerError
from rlanything.learner import deepspeed, model


@pytest.fixture
def fused(monkeypatch):
    """Makes learners use AdamW in one kernel, as they do on accelerators only; lists the optimizers made."""
    made = []

    class Fused(torch.optim.AdamW):
        def __init__(self, params, **options):
            super().__init__(params, **options | {"fused": True})
            made.append(self)

    monkeypatch.setattr(torch.optim, "AdamW", Fused)
    return made


@pytest.mark.parametrize("zero_stage", [0, *(pytest.param(stage, marks=pytest.mark.slow) for stage in (1, 2)), 3])
def test_a_fused_optimizer_learns_the_same_and_continues_bit_for_bit(
    make_learner, tmp_path, zero_stage, request, monkeypatch
):
    plain = make_learner(zero_stage=zero_stage)
    made = request.getfixturevalue("fused")
    learner = make_learner(zero_stage=zero_stage)
    for step in range(2):
        plain.update(sample_sets(random_samples(step)))
        learner.update(sample_sets(random_samples(step)))
    assert [optimizer.defaults["fused"] for optimizer in made] == [True]
    for (name, a), b in zip(weights_of(plain).items(), weights_of(learner).values(), strict=True):
        assert torch.allclose(a, b, atol=1e-5), name

    learner.save(tmp_path / "state")
    resumed = make_learner(zero_stage=zero_stage, seed=99)
    resumed.load(tmp_path / "state")
    if zero_stage:
        resumed.offload()
        resumed.reload()
    for one in (learner, resumed):
        one.update(sample_sets(random_samples(2)))
    assert learner.checksum(torch.float32) == resumed.checksum(torch.float32)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
@pytest.mark.parametrize("keys", [{}, {"gradient_checkpointing": True, "zero_stage": 2, "kl_beta": 0.1}], ids=str)
def test_compiled_layers_learn_the_same(make_learner, keys):
    plain, compiled = (make_learner(compile=compile, **keys) for compile in (False, True))
    for step in range(2):
        plain.update(sample_sets(random_samples(step)))
        compiled.update(sample_sets(random_samples(step)))
    layers = [m for m in compiled.model.modules() if m._compiled_call_impl is not None]
    assert len(layers) == compiled.model.lm.config.num_hidden_layers
    for (name, a), b in zip(weights_of(plain).items(), weights_of(compiled).values(), strict=True):
        assert torch.allclose(a, b, atol=1e-4), name


def test_a_model_without_layers_to_compile_is_refused(make_learner, monkeypatch):
    monkeypatch.setattr(model, "GradientCheckpointingLayer", torch.nn.Bilinear)
    with pytest.raises(LearnerError, match="compile: found true, but Qwen3ForCausalLM has no layers"):
        make_learner(compile=True)


@pytest.mark.parametrize("zero_stage", [0, 1, 2])
def test_a_closed_learner_holds_no_memory(model_folder, zero_stage):
    from rlanything.config.schema import LearnerConfig, ModelConfig

    config = LearnerConfig(zero_stage=zero_stage, kl_beta=0.1, dtype="float32")
    learner = deepspeed.Learner(ModelConfig(path=str(model_folder["qwen3"])), config, 10)
    learner.update(sample_sets(random_samples(0)))
    held = [weakref.ref(p) for p in learner.model.parameters()]
    learner.close()
    gc.disable()
    try:
        assert not [r for r in held if r() is not None]
    finally:
        gc.enable()
