"""The learner on real DeepSpeed on a CPU: it learns, continues exactly from a checkpoint, and refuses bad values."""

import json
import shutil

import numpy as np
import pytest
import torch
from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as State
from learner_helpers import logprobs_in_one_row, random_samples, weights_of
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from rlanything.algorithm.samples import sample_sets
from rlanything.config.schema import LearnerConfig, ModelConfig
from rlanything.errors import LearnerError
from rlanything.learner.attention import FLEX_BLOCK
from rlanything.learner.deepspeed import Learner
from rlanything.learner.distributed import lr_factor, start_deepspeed
from rlanything.learner.model import TreeModel
from rlanything.learner.packing import build_trees, pack
from rlanything.types import Sample


def logprobs_of(learner, samples):
    """Log-probabilities of each sample's trained tokens under the learner's present weights."""
    return [logprobs_in_one_row(learner, [sample], learner.temperature).numpy() for sample in samples]


@pytest.mark.parametrize("keys", [{}, {"dtype": "bfloat16"}, {"kl_beta": 0.01}, {"zero_stage": 2}], ids=str)
def test_it_learns_a_bandit(make_learner, keys):
    learner = make_learner(lr=2e-2, **keys)
    prompts, answers, rng = [[5, 6, 7], [8, 9]], [40, 41], np.random.default_rng(0)

    def policy():
        probes = [[Sample(np.array([*p, a]), *np.eye(len(p) + 1)[[-1] * 3], "p") for a in range(64)] for p in prompts]
        logprobs = torch.stack([logprobs_in_one_row(learner, answers) for answers in probes])  # in order of the answer
        return logprobs.double().softmax(-1).numpy()

    assert policy()[[0, 1], answers].max() < 0.2
    for _ in range(40):
        samples = []
        for which, probabilities in enumerate(policy()):
            # With 64 draws bfloat16 can lose the second answer, unseen, while the first one's gradient moves all.
            drawn = rng.choice(64, 256, p=probabilities)
            reward = (drawn == answers[which]).astype(float)
            last = np.eye(len(prompts[which]) + 1)[-1]
            samples += [
                Sample(np.array([*prompts[which], a]), last, last * z, last * np.log(probabilities[a]), key=str(which))
                for a, z in zip(drawn, (reward - reward.mean()) / (reward.std() + 1e-6), strict=True)
            ]
        metrics = learner.update(sample_sets(samples))
    assert policy()[[0, 1], answers].min() > 0.9
    assert metrics["packing_ratio"] > 2
    assert metrics["mismatch_kl"] < 1e-2


@pytest.mark.parametrize("zero_stage", [0, 1, 3])
def test_save_and_load_continue_bit_for_bit(make_learner, tmp_path, zero_stage):
    keys = {"schedule": "cosine", "total_update": 12, "zero_stage": zero_stage, "kl_beta": 0.1}
    learner = make_learner(**keys)
    for step in range(2):
        learner.update(sample_sets(random_samples(step)))
    learner.save(tmp_path / "state")
    expected = [learner.update(sample_sets(random_samples(step))) for step in (2, 3)]
    resumed = make_learner(**keys, seed=99)
    resumed.load(tmp_path / "state")
    for step, before in zip((2, 3), expected, strict=True):
        after = resumed.update(sample_sets(random_samples(step)))
        of_the_machine = {"train_s": 0, "peak_gpu_memory_gb": 0}
        assert before | of_the_machine == after | of_the_machine
    for (name, a), b in zip(weights_of(learner).items(), weights_of(resumed).values(), strict=True):
        assert torch.equal(a, b), name
    assert learner.checksum(torch.bfloat16) == resumed.checksum(torch.bfloat16)


@pytest.mark.parametrize(
    "keys",
    [
        {"zero_stage": 2, "offload": True},
        *(
            pytest.param(keys, marks=pytest.mark.slow)
            for keys in (
                {"zero_stage": 3, "offload": False},
                {"zero_stage": 1, "offload": False},
                {"zero_stage": 1, "offload": True},
                {"zero_stage": 2, "offload": False},
                {"zero_stage": 3, "offload": True},
                {"zero_stage": 2, "lora_rank": 2},
            )
        ),
    ],
    ids=str,
)
def test_handing_over_the_accelerator_changes_nothing(make_learner, tmp_path, keys):
    kept, handed = (make_learner(kl_beta=0.1, **keys) for _ in range(2))
    handed.offload()
    states = {State.hp_params, State.optim_states} & handed.engine.optimizer.offloaded_states
    assert bool(states) == (handed.config.zero_stage < 3 and not handed.config.offload)  # else DeepSpeed moves neither
    for step in range(2):
        handed.reload()
        assert (
            kept.update(sample_sets(random_samples(step)))["loss"]
            == handed.update(sample_sets(random_samples(step)))["loss"]
        )
        handed.save(tmp_path / str(step))
        handed.offload()
    handed.reload()
    assert kept.checksum(torch.float32) == handed.checksum(torch.float32)
    resumed = make_learner(kl_beta=0.1, **keys)
    resumed.load(tmp_path / "1")
    assert resumed.checksum(torch.float32) == kept.checksum(torch.float32)


def test_loading_a_folder_without_state_is_refused(make_learner, tmp_path):
    with pytest.raises(LearnerError, match="found no learner state"):
        make_learner().load(tmp_path / "nothing")


@pytest.mark.parametrize("where", ["tensors", "names", "state"])
def test_a_checkpoint_with_a_flipped_bit_is_refused(make_learner, tmp_path, where):
    learner = make_learner()
    learner.update(sample_sets(random_samples(0)))
    learner.save(tmp_path / "state")
    file = next((tmp_path / "state").glob("state.json" if where == "state" else "rank_*.safetensors"))
    data = bytearray(file.read_bytes())
    place = {"tensors": len(data) - 100, "names": data.find(b"exp_avg/0"), "state": data.find(b'"state": ') + 12}[where]
    data[place] ^= 1
    file.write_bytes(data)
    with pytest.raises(ValueError, match="checksum that it was written with"):
        make_learner().load(tmp_path / "state")


def test_two_learners_do_not_touch_each_other(make_learner):
    policy, reward = make_learner("qwen3"), make_learner("llama")
    before = weights_of(reward)
    alone = make_learner("qwen3")
    policy.update(sample_sets(random_samples(0)))
    assert all(torch.equal(a, before[name]) for name, a in reward.weights())
    reward.update(sample_sets(random_samples(1)))
    policy.update(sample_sets(random_samples(2)))
    for step in (0, 2):
        alone.update(sample_sets(random_samples(step)))
    assert all(torch.equal(a, b) for a, b in zip(weights_of(policy).values(), weights_of(alone).values(), strict=True))


@pytest.mark.parametrize("zero_stage", [0, 2])
@pytest.mark.parametrize("poison", ["advantages", "logprobs"])
def test_a_value_that_is_not_finite_raises_before_the_step(make_learner, zero_stage, poison):
    learner = make_learner(zero_stage=zero_stage, num_update=1)
    before = weights_of(learner)
    samples = random_samples(0)
    getattr(samples[3], poison)[-1] = np.nan
    with pytest.raises(LearnerError, match="update 0: the loss is not finite"):
        learner.update(sample_sets(samples))
    assert all(torch.equal(a, before[name]) for name, a in learner.weights())
    learner.update(sample_sets(random_samples(1)))
    assert all(tensor.isfinite().all() for _, tensor in learner.weights())


@pytest.mark.parametrize("zero_stage", [0, 2])
def test_an_infinite_gradient_of_a_finite_loss_raises(make_learner, zero_stage):
    learner = make_learner(zero_stage=zero_stage)
    learner.model.lm.lm_head.register_full_backward_hook(lambda m, gi, go: (gi[0] * float("inf"), *gi[1:]))
    before = weights_of(learner)
    with pytest.raises(LearnerError, match="the gradient is not finite"):
        learner.update(sample_sets(random_samples(0)))
    assert all(torch.equal(a, before[name]) for name, a in learner.weights())


def test_the_first_minibatch_is_on_policy_and_later_ones_are_not(make_learner):
    samples = random_samples(0)
    assert make_learner(num_update=1).update(sample_sets(samples))["ratio"] == 1.0
    assert make_learner(num_update=3).update(sample_sets(samples))["approx_kl"] > 0
    metrics = make_learner(num_update=1, num_epoch=2).update(sample_sets(samples))
    assert metrics["num_update"] == 2 and metrics["approx_kl"] > 0


def test_a_previous_reference_starts_at_zero_kl_and_an_initial_one_stays(make_learner):
    previous = make_learner(num_update=1, kl_beta=0.1, kl_reference="previous")
    initial = make_learner(num_update=1, kl_beta=0.1, kl_reference="initial", dtype="bfloat16")
    assert initial.update(sample_sets(random_samples(2)))["kl_reference"] == 0
    for step in range(2):
        kl_previous = previous.update(sample_sets(random_samples(step)))["kl_reference"]
        kl_initial = initial.update(sample_sets(random_samples(step)))["kl_reference"]
    assert kl_previous == 0 and kl_initial > 0


def test_engine_logprobs_can_be_the_old_ones(make_learner):
    learner = make_learner(num_update=1, old_logprobs="engine")
    samples = random_samples(0)
    exact = [
        Sample(s.ids, s.weights, s.advantages, np.r_[np.zeros(4), lp], s.key)
        for s, lp in zip(samples, logprobs_of(learner, samples), strict=True)
    ]
    metrics = learner.update(sample_sets(exact))
    assert metrics["ratio"] == pytest.approx(1, abs=1e-4) and metrics["importance_weight"] == 1
    assert make_learner(num_update=1, old_logprobs="engine").update(sample_sets(samples))["approx_kl"] > 1e-3


def test_the_schedule_spans_total_update(make_learner):
    config = LearnerConfig(schedule="linear", warmup_update=2)
    factors = [lr_factor(u, 10, config) for u in range(12)]
    assert factors[:3] == [0.5, 1.0, 1.0] and factors[6] == 0.5 and factors[10:] == [0, 0]
    cosine = LearnerConfig(schedule="cosine")
    assert [lr_factor(u, 10, cosine) for u in (0, 5, 10)] == pytest.approx([1, 0.5, 0])
    learner = make_learner(schedule="linear", lr=1.0e-3, total_update=4, num_update=2)
    rates = [learner.update(sample_sets(random_samples(step)))["lr"] for step in range(2)]  # means over two updates
    assert rates == pytest.approx([0.875e-3, 0.375e-3])


def test_supervised_training_overfits_a_sample(make_learner):
    learner = make_learner("llama", num_update=1)
    samples = random_samples(3, num=1)
    losses = [learner.update_supervised(sample_sets(samples))["loss"] for _ in range(40)]
    assert losses[0] > 3 and losses[-1] < 0.05
    assert np.exp(logprobs_of(learner, samples)[0]).min() > 0.8


@pytest.mark.parametrize(
    "keys",
    [
        {"gradient_checkpointing": True},
        {"micro_batch_tokens": 40},
        {"zero_stage": 3},
        *({"zero_stage": stage, "offload": True} for stage in (1, 2, 3)),
    ],
    ids=str,
)
def test_memory_options_do_not_change_the_update(make_learner, keys):
    plain, saving = make_learner(num_update=1, max_grad_norm=0.1), make_learner(num_update=1, max_grad_norm=0.1, **keys)
    first, second = plain.update(sample_sets(random_samples(0))), saving.update(sample_sets(random_samples(0)))
    for name in ("loss", "entropy", "grad_norm"):
        assert second[name] == pytest.approx(first[name], rel=1e-4), name
    for name, tensor in saving.weights():
        torch.testing.assert_close(tensor, plain.model.lm.get_parameter(name), rtol=0, atol=2e-4)


def test_no_samples_make_no_update(make_learner):
    learner = make_learner()
    before = weights_of(learner)
    assert learner.update([])["num_update"] == 0
    assert all(torch.equal(a, before[name]) for name, a in learner.weights())


def test_export_is_a_hugging_face_folder_that_replaces_an_older_one(make_learner, tmp_path):
    learner = make_learner("llama")
    learner.export(tmp_path / "model")
    learner.update(sample_sets(random_samples(0)))
    learner.export(tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    assert all(torch.equal(loaded.get_parameter(name), tensor.cpu()) for name, tensor in learner.weights())
    assert AutoTokenizer.from_pretrained(tmp_path / "model").encode("w7 w9") == [7, 9]
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    config = LearnerConfig(dtype="float32")
    again = TreeModel(ModelConfig(path=str(tmp_path / "model")), config, learner.device).to(learner.device)
    (batch,) = pack(build_trees(random_samples(1, num=2), 1000), 1000, multiple=FLEX_BLOCK)
    assert torch.equal(again(batch, 1.0)[0], learner.model(batch, 1.0)[0])


def test_bfloat16_stays_close_to_float32(make_learner):
    samples = random_samples(5)
    exact, rounded = (np.concatenate(logprobs_of(make_learner(dtype=d), samples)) for d in ("float32", "bfloat16"))
    assert 0 < np.abs(exact - rounded).mean() < 0.05


@pytest.mark.parametrize("zero_stage", [0, 2])
def test_a_resumed_optimizer_follows_the_present_configuration(make_learner, tmp_path, zero_stage):
    learner = make_learner(zero_stage=zero_stage)
    learner.update(sample_sets(random_samples(0)))
    learner.save(tmp_path / "saved")
    resumed = make_learner(zero_stage=zero_stage, betas=[0.5, 0.6], weight_decay=0.1)
    resumed.load(tmp_path / "saved")
    resumed.update(sample_sets(random_samples(1)))
    groups = resumed.engine.optimizer.param_groups
    assert all(tuple(g["betas"]) == (0.5, 0.6) and g["weight_decay"] == 0.1 for g in groups)


def test_a_model_that_scales_its_logits_is_refused(make_learner, model_folder, tmp_path):
    folder = tmp_path / "scaled"
    shutil.copytree(model_folder["llama"], folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"logits_scaling": 8.0}))
    with pytest.raises(LearnerError, match="scaled: its config sets logits_scaling"):
        Learner(ModelConfig(path=str(folder)), LearnerConfig(), 1)


def test_zero_3_partitions_a_model_while_it_loads(model_folder):
    def load(zero_stage: int) -> TreeModel:
        config = LearnerConfig(dtype="float32", zero_stage=zero_stage)
        return TreeModel(ModelConfig(path=str(model_folder["qwen3"])), config, torch.device("cpu"))

    start_deepspeed(None)
    parts, whole = load(3), load(2).lm.state_dict()
    for name, parameter in parts.lm.named_parameters():
        assert parameter.numel() == 0 and whole[name].numel() > 0, "ZeRO-3 alone partitions a model"
        assert torch.equal(parameter.ds_tensor.cpu(), whole[name].flatten()), "the only rank holds every element"


@pytest.mark.parametrize(
    "extra",
    [
        {"temperature": 0.9, "top_p": 0.6},
        {"do_sample": False, "temperature": 0.6},
        {"early_stopping": True},
        {"do_sample": True, "temperature": 0.7, "top_k": 20, "repetition_penalty": 1.1},
        {"do_sample": True, "temperature": 0.0},
        {"max_length": 4096, "unknown_key": [1]},
    ],
)
def test_a_generation_config_is_carried_along_as_it_is(model_folder, tmp_path, extra):
    source = tmp_path / "source"
    shutil.copytree(model_folder["qwen3"], source)
    text = json.dumps({"eos_token_id": 2, "pad_token_id": 0} | extra)
    (source / "generation_config.json").write_text(text)
    learner = Learner(ModelConfig(path=str(source)), LearnerConfig(dtype="float32", kl_beta=0.0), 100)
    learner.export(tmp_path / "model")
    learner.close()
    assert (tmp_path / "model" / "generation_config.json").read_text() == text


@pytest.mark.parametrize(("wanted", "found"), [("model", torch.bfloat16), ("float32", torch.float32)])
def test_an_export_has_the_type_of_the_models_files_or_float32(model_folder, tmp_path, wanted, found):
    source = tmp_path / "source"
    shutil.copytree(model_folder["qwen3"], source)
    AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).save_pretrained(source)
    config = LearnerConfig(dtype="float32", kl_beta=0.0, export_dtype=wanted)
    learner = Learner(ModelConfig(path=str(source)), config, 100)
    learner.export(tmp_path / "model")
    learner.close()
    weights = load_file(tmp_path / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {found}
    assert AutoConfig.from_pretrained(tmp_path / "model").dtype == found
