"""The small engine on prompts with images, against a plain forward pass of transformers over whole sequences."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_helpers import perturb
from PIL import Image
from tiny_vision import KINDS, write_picture, write_vision_model
from transformers import AutoImageProcessor, AutoModelForImageTextToText, PreTrainedModel

from rlanything.config.schema import EngineConfig, ModelConfig
from rlanything.engines import check_model, start_engine
from rlanything.engines.base import Completion, Engine, EngineDead, EngineError, SamplingParams
from rlanything.engines.chat import Chat
from rlanything.engines.small import scheduler
from rlanything.engines.small import vision as small_vision
from rlanything.engines.small.engine import TransformersEngine
from rlanything.types import Prompt, assistant, user
from rlanything.weights.images import BIAS, unwritten_ids

TOLERANCE = 2e-5


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision_model(tmp_path_factory.mktemp(request.param), kind=request.param)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two of one size, and two of another."""
    folder = tmp_path_factory.mktemp("pictures")
    return [write_picture(folder / f"{i}.png", (64, 48) if i < 2 else (100, 70), i) for i in range(4)]


@pytest.fixture
def chat(folder: Path) -> Chat:
    return Chat(ModelConfig(path=str(folder)))


def start(folder: Path, **changes: object) -> TransformersEngine:
    values: dict = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 32, "kv_cache_gb": 0.02} | changes
    config = EngineConfig(kind="transformers", **values)
    return TransformersEngine(ModelConfig(path=str(folder)), config, 0, folder / "engine.log")


def generate(engine: Engine, batch: list[Prompt], n: int = 1) -> list[list[Completion]]:
    """Make all requests at the same time, and return their answers; request i has the seed i."""

    async def all_at_once() -> list[list[Completion]]:
        calls = [
            engine.generate(p.ids, SamplingParams(temperature=0.8, max_tokens=8, seed=i), n=n, images=p.images)
            for i, p in enumerate(batch)
        ]
        return list(await asyncio.gather(*calls))

    return asyncio.run(all_at_once())


def plain(folder: Path) -> PreTrainedModel:
    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()


def assert_logprobs(
    folder: Path,
    batch: list[Prompt],
    outputs: list[list[Completion]],
    model: PreTrainedModel | None = None,
    tolerance: float = TOLERANCE,
) -> None:
    """The logprobs are those of a forward pass over each whole sequence and its images."""
    model, processor = model or plain(folder), AutoImageProcessor.from_pretrained(folder)
    for prompt, completions in zip(batch, outputs, strict=True):
        for completion in completions:
            ids = torch.tensor([prompt.ids + completion.token_ids])
            given = {}
            if prompt.images:
                opened = [Image.open(image.path).convert("RGB") for image in prompt.images]
                given = dict(processor(images=opened, return_tensors="pt"))
            kinds = (ids == model.config.image_token_id).int()
            with torch.no_grad():
                logits = model(input_ids=ids, mm_token_type_ids=kinds, use_cache=False, **given).logits[0]
            logits[:, unwritten_ids(model.config)] += BIAS
            expected = (logits[len(prompt.ids) - 1 : -1] / 0.8).log_softmax(-1)
            expected = expected[torch.arange(len(completion.token_ids)), completion.token_ids]
            torch.testing.assert_close(torch.tensor(completion.logprobs), expected, rtol=0, atol=tolerance)


def test_logprobs_equal_a_full_forward_pass_over_texts_and_images(folder, chat, pictures):
    asked = [pictures[:1], pictures[1:2], pictures[2:], [], [pictures[0], pictures[3], pictures[0]]]
    batch = [chat.prompt([user("Find a mug.", paths)]) for paths in asked]
    outputs = generate(start(folder), batch, n=3)
    assert_logprobs(folder, batch, outputs)


def test_a_grown_conversation_computes_the_new_image_alone(folder, chat, pictures):
    engine = start(folder)
    first = chat.prompt([user("Find a mug.", pictures[:1])])
    [[answer]] = generate(engine, [first])
    grown = first.extended(answer.token_ids, chat.follow_up([user("", pictures[2:3])]))
    before = engine.stats().cached_prompt_tokens
    outputs = generate(engine, [grown], n=2)
    assert engine.stats().cached_prompt_tokens - before == len(first.ids) + len(answer.token_ids) - 1
    assert_logprobs(folder, [grown], outputs)


def test_blocks_are_shared_by_equal_images_and_by_no_others(folder, chat, pictures, tmp_path):
    copied = tmp_path / "copy.png"
    copied.write_bytes(Path(pictures[0]).read_bytes())
    engine = start(folder)
    same = [chat.prompt([user("Find a mug.", [path])]) for path in (pictures[0], str(copied))]
    other = chat.prompt([user("Find a mug.", pictures[1:2])])
    assert same[0].ids == same[1].ids == other.ids
    generate(engine, same[:1])
    before = engine.stats().cached_prompt_tokens
    generate(engine, same[1:])
    assert engine.stats().cached_prompt_tokens - before == len(same[1].ids) - 1
    before = engine.stats().cached_prompt_tokens
    outputs = generate(engine, [other])
    assert engine.stats().cached_prompt_tokens - before <= other.images[0].start
    assert_logprobs(folder, [other], outputs)


def test_an_image_that_two_steps_prefill_is_read_right(folder, chat, pictures, monkeypatch):
    monkeypatch.setattr(scheduler, "MAX_STEP_TOKENS", 11)  # of the 12 and 24 tokens of an image
    batch = [chat.prompt([user("Find a mug.", pictures)]), chat.prompt([user("And this?", pictures[1:2])])]
    assert_logprobs(folder, batch, generate(start(folder), batch))


def test_the_tower_reads_each_image_once_until_its_outputs_take_much_room(folder, chat, pictures, monkeypatch):
    engine, read = start(folder), []
    images = engine._vision._images
    processed = images.processed
    monkeypatch.setattr(images, "processed", lambda path: read.append(path) or processed(path))
    a, b, c, d = pictures  # in another order they share no block of the cache
    batch = [chat.prompt([user("Find a mug.", pair)]) for pair in ([a, b], [b, a], [c, d], [d, c])]
    for prompt in batch:
        generate(engine, [prompt])
    assert read == pictures
    engine.clear_caches()
    monkeypatch.setattr(small_vision, "KEPT_BYTES", 0)
    for prompt in batch:
        assert_logprobs(folder, [prompt], generate(engine, [prompt]))
    assert len(read) == 3 * len(pictures) and len(engine._vision._outputs) == 2


def test_new_weights_read_the_images_anew(folder, chat, pictures):
    engine = start(folder)
    batch = [chat.prompt([user("Find a mug.", [path])]) for path in pictures]
    generate(engine, batch)
    model = plain(folder)
    perturb(model)
    engine.load_weights(1, dict(model.named_parameters()).items())
    assert_logprobs(folder, batch, generate(engine, batch), model)


def test_an_engine_never_writes_the_token_of_an_image(folder, chat, pictures):
    engine = start(folder)
    with torch.no_grad():  # a head that would write little else
        engine.model.lm_head.weight[unwritten_ids(engine.model.config)] *= 20
    [completions] = generate(engine, [chat.prompt([user("Find a mug.", pictures[:1])])], n=16)
    written = {token for completion in completions for token in completion.token_ids}
    assert not written & set(unwritten_ids(engine.model.config))


def test_images_that_do_not_fit_the_prompt_or_cannot_be_read_are_named(folder, chat, pictures, tmp_path):
    prompt = chat.prompt([user("Find a mug.", pictures[:1])])
    engine = start(folder)
    with pytest.raises(EngineError, match="12 tokens of images, expected 0 for its 0 images"):
        generate(engine, [Prompt(ids=prompt.ids)])
    gone = replace(prompt, images=(replace(prompt.images[0], path=str(tmp_path / "gone.png")),))
    with pytest.raises(EngineError, match="gone.png: the image of a prompt is gone; keep the run's folder images/"):
        generate(engine, [gone])
    assert_logprobs(folder, [prompt], generate(engine, [prompt]))  # the others' requests go on
    cut = tmp_path / "cut.png"
    cut.write_bytes(Path(pictures[0]).read_bytes()[:60])
    other = replace(prompt, images=(replace(prompt.images[0], path=str(cut), digest="f" * 64),))
    with pytest.raises(EngineDead, match="an image of a prompt cannot be read .*keep the run's folder images/"):
        generate(engine, [other])


def test_a_model_whose_towers_outputs_cannot_be_given_is_named(folder, monkeypatch):
    monkeypatch.delattr("transformers.Qwen3VLModel.get_rope_index")
    monkeypatch.delattr("transformers.Qwen2_5_VLModel.get_rope_index")
    with pytest.raises(EngineError, match="reads images in a way that the small engine does not know; .*kind=vllm"):
        start(folder)


def test_bfloat16_changes_no_more_than_rounding(folder, chat, pictures):
    batch = [chat.prompt([user("Find a mug.", pictures[1:3])]), chat.prompt([user("No picture.")])]
    rounded = generate(start(folder, dtype="bfloat16"), batch)
    assert_logprobs(folder, batch, rounded, tolerance=0.2)


@pytest.mark.slow
def test_an_engine_in_a_process_of_its_own_reads_the_same_images(folder, chat, pictures, tmp_path):
    batch = [chat.prompt([user("Find a mug.", pictures)])]
    config = EngineConfig(
        kind="transformers", dtype="float32", max_model_len=512, max_num_seqs=32, kv_cache_gb=0.02, own_process=True
    )
    with closing(start_engine(ModelConfig(path=str(folder)), config, 0, tmp_path / "log")) as engine:
        [[apart]] = generate(engine, batch)
    [[here]] = generate(start(folder), batch)
    assert apart.token_ids == here.token_ids and apart.logprobs == pytest.approx(here.logprobs, abs=TOLERANCE)


def test_the_small_engine_is_accepted_for_a_model_of_images(folder):
    check_model(ModelConfig(path=str(folder)), EngineConfig(max_model_len=2048, kind="transformers"))


def test_a_conversation_of_many_turns_reads_as_one_made_anew(folder, chat, pictures):
    engine = start(folder, max_model_len=1024)
    messages = [user("Find a mug.", pictures[:1])]
    prompt = chat.prompt(messages)
    for turn in range(4):
        [[answer]] = generate(engine, [prompt])
        prompt = prompt.extended(answer.token_ids, chat.follow_up([user("", [pictures[turn]])]))
        messages += [assistant(chat.tokenizer.decode(answer.token_ids)), user("", [pictures[turn]])]
    warm = generate(engine, [prompt])
    cold = generate(start(folder, max_model_len=1024), [prompt])
    assert warm[0][0].logprobs == pytest.approx(cold[0][0].logprobs, abs=TOLERANCE)
