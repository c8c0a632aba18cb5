"""A model of images trains packed as it trains sample by sample, and is exported whole."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_vision import KINDS, write_picture, write_vision_model
from transformers import AutoImageProcessor, AutoModelForImageTextToText

from rlanything.algorithm.samples import sample_sets
from rlanything.config.schema import EngineConfig, LearnerConfig, ModelConfig
from rlanything.engines import check_model
from rlanything.engines.chat import Chat
from rlanything.errors import LearnerError
from rlanything.learner.deepspeed import Learner
from rlanything.learner.model import TreeModel
from rlanything.learner.packing import build_trees, pack
from rlanything.types import Sample, assistant, user
from rlanything.weights.images import BIAS, unwritten_ids


@pytest.fixture(scope="module", params=KINDS)
def folder(tmp_path_factory, request):
    return write_vision_model(tmp_path_factory.mktemp("vision"), kind=request.param)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    return [write_picture(folder / f"{i}.png", (64, 48) if i < 2 else (100, 70), i) for i in range(4)]


@pytest.fixture(scope="module")
def samples(folder, pictures):
    """Turns of an episode that share screenshots, the same texts with another screenshot, and a text alone."""
    chat = Chat(ModelConfig(path=str(folder)))
    opening = [user("Find a mug.", pictures[:1])]
    longer = [*opening, assistant("go"), user("Here.", pictures[2:3])]
    prompts = [chat.prompt(opening), chat.prompt(longer), chat.prompt(opening)]
    prompts += [chat.prompt([user("Find a mug.", pictures[1:2])]), chat.prompt([user("No picture.")])]
    made = []
    for i, prompt in enumerate(prompts):
        rng, response = np.random.default_rng(i), chat.response_ids("take" if i % 2 else "look at it")
        weights = np.asarray([0.0] * len(prompt.ids) + [1.0] * len(response), np.float32)
        noise = rng.normal(size=len(weights)).astype(np.float32)
        ids = np.asarray([*prompt.ids, *response], np.int64)
        made.append(Sample(ids, weights, noise * weights, -abs(noise) * weights, "episode", prompt.images))
    return made


def logprobs_alone(lm, processor, sample: Sample) -> torch.Tensor:
    """transformers' own log-probabilities of a sample's trained tokens."""
    ids = torch.from_numpy(sample.ids)[None]
    images = {}
    if sample.images:
        opened = [Image.open(image.path).convert("RGB") for image in sample.images]
        images = dict(processor(images=opened, return_tensors="pt"))
    kinds = (ids == lm.config.image_token_id).int()
    logits = lm(input_ids=ids, mm_token_type_ids=kinds, use_cache=False, **images).logits[0]
    logits[:, unwritten_ids(lm.config)] += BIAS
    logits = logits.log_softmax(-1)
    trained = np.flatnonzero(sample.weights)
    return logits[trained - 1, sample.ids[trained]]


def test_packed_images_give_the_gradients_of_one_pass_a_sample(folder, samples):
    config = LearnerConfig(dtype="float32")
    model = TreeModel(ModelConfig(path=str(folder)), config, torch.device("cpu"))
    trees = build_trees(samples, 4096, positions=model.positions)
    assert sum(tree.size for tree in trees) < 0.7 * sum(len(s.ids) for s in samples)
    total = torch.tensor(0.0)
    for batch in pack(trees, 4096):
        logprobs, _ = model(batch, 1.0)
        total = total + (logprobs * torch.from_numpy(batch.entries.advantages)).sum()
    total.backward()

    plain = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    processor = AutoImageProcessor.from_pretrained(folder)
    expected = torch.tensor(0.0)
    for sample in samples:
        advantages = torch.from_numpy(sample.advantages[np.flatnonzero(sample.weights)])
        expected = expected + (logprobs_alone(plain, processor, sample) * advantages).sum()
    expected.backward()
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-5)
    theirs = dict(plain.named_parameters())
    for name, parameter in model.lm.named_parameters():
        torch.testing.assert_close(
            parameter.grad, theirs[name].grad, rtol=1e-5, atol=1e-5 * float(theirs[name].grad.abs().max()), msg=name
        )
    assert model.lm.model.visual.patch_embed.proj.weight.grad.abs().sum() > 0


def test_equal_images_go_through_the_tower_once_wherever_they_stand(folder, pictures):
    """Prompts that show the last screens alone share screenshots, but no beginning."""
    chat = Chat(ModelConfig(path=str(folder)))
    model = TreeModel(ModelConfig(path=str(folder)), LearnerConfig(dtype="float32"), torch.device("cpu"))
    processor, made = AutoImageProcessor.from_pretrained(folder), []
    shown = [(0, 2), (2, 3), (3, 0)]
    for i, (first, second) in enumerate(shown):
        prompt, response = (
            chat.prompt([user(f"step {i}", [pictures[first], pictures[second]])]),
            chat.response_ids("go"),
        )
        weights = np.asarray([0.0] * len(prompt.ids) + [1.0] * len(response), np.float32)
        ids = np.asarray([*prompt.ids, *response], np.int64)
        made.append(Sample(ids, weights, weights, 0 * weights, "episode", prompt.images))
    [batch] = pack(build_trees(made, 4096, positions=model.positions), 4096)
    patches = []
    hook = model.vision.tower.register_forward_pre_hook(lambda _, given: patches.append(len(given[0])))
    logprobs, _ = model(batch, 1.0)
    hook.remove()
    sizes = {i: len(processor(images=[Image.open(pictures[i]).convert("RGB")])["pixel_values"]) for i in (0, 2, 3)}
    assert patches == [sum(sizes.values())] and len(batch.images) == 6
    expected = torch.cat([logprobs_alone(model_of(folder), processor, sample) for sample in made])
    torch.testing.assert_close(sorted(logprobs.tolist()), sorted(expected.tolist()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("checkpointing", "num"), [(False, 1), (True, 2)])
def test_gradient_checkpointing_computes_the_towers_layers_anew_too(folder, samples, checkpointing, num):
    config = LearnerConfig(dtype="float32", kl_beta=0.0, gradient_checkpointing=checkpointing)
    with closing(Learner(ModelConfig(path=str(folder)), config, 20)) as learner:
        computed = []
        for block in learner.model.vision.tower.blocks:
            block.register_forward_pre_hook(lambda module, given: computed.append(module))
        learner.update_supervised(sample_sets(samples))
        blocks = learner.model.vision.tower.blocks
        assert [computed.count(block) for block in blocks] == [num] * len(blocks)


def model_of(folder):
    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)


def test_an_image_that_is_gone_is_named(folder, samples):
    gone = replace(samples[0], images=(replace(samples[0].images[0], path="gone.png"),))
    with closing(Learner(ModelConfig(path=str(folder)), LearnerConfig(dtype="float32", kl_beta=0.0), 20)) as learner:
        with pytest.raises(LearnerError, match="gone.png: an image of a sample cannot be read"):
            learner.update_supervised(sample_sets([gone]))


def test_different_screenshots_are_never_merged(samples):
    same, other = samples[0], samples[3]
    start, size = same.images[0].start, same.images[0].num_token
    assert (same.ids[: start + size] == other.ids[: start + size]).all()
    merged = sum(tree.size for tree in build_trees([same, samples[2]], 4096))
    apart = sum(tree.size for tree in build_trees([same, other], 4096))
    assert merged < len(same.ids) + 3 and apart == len(same.ids) + len(other.ids) - start


@pytest.mark.parametrize("zero_stage", [0, pytest.param(1, marks=pytest.mark.slow), 2])
def test_it_learns_from_images_and_is_exported_whole(folder, samples, tmp_path, zero_stage):
    config = LearnerConfig(lr=3e-3, num_update=1, kl_beta=0.0, dtype="float32", zero_stage=zero_stage)
    with closing(Learner(ModelConfig(path=str(folder)), config, 20)) as learner:
        losses = [learner.update_supervised(sample_sets(samples))["loss"] for _ in range(12)]
        assert losses[-1] < 0.5 * losses[0]
        learner.export(tmp_path / "out")
        trained = dict(learner.weights())
    check_model(ModelConfig(path=str(tmp_path / "out")), EngineConfig(max_model_len=2048))
    exported = AutoModelForImageTextToText.from_pretrained(tmp_path / "out", dtype=torch.float32)
    found = dict(exported.named_parameters())
    assert found.keys() == trained.keys()
    assert all(torch.equal(found[name], weight.cpu()) for name, weight in trained.items())


def test_what_only_the_screenshots_tell_apart_is_learned(folder, pictures):
    """Two equal texts with other screenshots have other answers: from the ids alone each would be a guess."""
    chat = Chat(ModelConfig(path=str(folder)))
    pair = []
    for answer, picture in zip(("take", "look"), pictures, strict=False):
        prompt, response = chat.prompt([user("Find a mug.", [picture])]), chat.response_ids(answer)
        weights = np.asarray([0.0] * len(prompt.ids) + [1.0] * len(response), np.float32)
        ids = np.asarray([*prompt.ids, *response], np.int64)
        pair.append(Sample(ids, weights, weights, weights, "same", prompt.images))
    config = LearnerConfig(lr=3e-3, num_update=1, kl_beta=0.0, dtype="float32", betas=[0.9, 0.98])
    with closing(Learner(ModelConfig(path=str(folder)), config, 300)) as learner:
        losses = [learner.update_supervised(sample_sets(pair))["loss"]]
        while losses[-1] > 0.05 and len(losses) < 300:
            losses.append(learner.update_supervised(sample_sets(pair))["loss"])
    assert losses[-1] <= 0.05


@pytest.mark.parametrize(
    "keys",
    [
        {"zero_stage": 3},
        {"gradient_checkpointing": True},
        *(pytest.param({"zero_stage": stage}, marks=pytest.mark.slow) for stage in (0, 1, 2)),
    ],
)
def test_texts_alone_and_images_train_in_turn(folder, samples, keys):
    config = LearnerConfig(lr=1e-3, num_update=1, kl_beta=0.0, dtype="float32", **keys)
    plain = LearnerConfig(lr=1e-3, num_update=1, kl_beta=0.0, dtype="float32")
    found = []
    for settings in (config, plain):
        with closing(Learner(ModelConfig(path=str(folder)), settings, 20)) as learner:
            found.append(
                [learner.update_supervised(sample_sets(part))["loss"] for part in (samples[4:], samples[:4], samples)]
            )
    np.testing.assert_allclose(*found, rtol=1e-4)


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_a_frozen_vision_tower_stays_as_it_is(folder, samples, tmp_path, lora_rank):
    keys = {"lr": 1e-2, "num_update": 1, "kl_beta": 0.0, "dtype": "float32", "lora_rank": lora_rank}
    before = dict(AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).named_parameters())
    for train_vision in (False, True):
        config, out = LearnerConfig(train_vision=train_vision, **keys), tmp_path / str(train_vision)
        with closing(Learner(ModelConfig(path=str(folder)), config, 20)) as learner:
            learner.update_supervised(sample_sets(samples))
            learner.update_supervised(sample_sets(samples))
            learner.export(out)
        after = AutoModelForImageTextToText.from_pretrained(out, dtype=torch.float32).named_parameters()
        moved = {name for name, weight in after if not torch.equal(weight, before[name])}
        assert any("language_model" in name for name in moved)
        assert any("visual" in name for name in moved) is train_vision
