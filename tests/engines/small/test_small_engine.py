"""The transformers engine against a plain Hugging Face forward pass over whole sequences."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import engine_helpers
import pytest
import torch
from engine_helpers import VOCAB, generate, load_model, perturb, prompts, save_model

from rlanything.config.schema import EngineConfig, ModelConfig
from rlanything.engines.base import Completion, EngineDead, EngineError, PromptTooLong, SamplingParams
from rlanything.engines.small import attention
from rlanything.engines.small.engine import TransformersEngine
from rlanything.weights.checksum import checksum

TOLERANCE = 2e-5
assert_logprobs = partial(engine_helpers.assert_logprobs, tolerance=TOLERANCE)


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model("qwen3", tmp_path_factory.mktemp("qwen3"))


def start(folder: Path, **changes: object) -> TransformersEngine:
    values: dict = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 32, "kv_cache_gb": 0.01} | changes
    config = EngineConfig(kind="transformers", **values)
    return TransformersEngine(ModelConfig(path=str(folder)), config, 0, folder / "engine.log")


def test_logprobs_equal_a_full_forward_pass(folder: Path) -> None:
    batch = prompts(1, 2, 15, 16, 17, 33, 64, 130)
    outputs = generate(start(folder), batch, n=3)
    assert_logprobs(load_model(folder), batch, outputs)


def test_a_long_prompt_s_queries_are_taken_in_parts_and_nothing_changes(folder: Path, monkeypatch) -> None:
    batch, sizes, most = prompts(130, 140, 33), [], 1 << 17
    mixed = attention._mixed

    def counted(query_BGLD, key_BSD, *given):
        sizes.append(query_BGLD[..., 0].numel() * key_BSD.shape[1])
        return mixed(query_BGLD, key_BSD, *given)

    monkeypatch.setattr(attention, "_mixed", counted)
    generate(start(folder), batch)
    assert max(sizes) > most, "in one product"
    sizes.clear()
    monkeypatch.setattr(attention, "MAX_SCORES", most)
    outputs = generate(start(folder), batch)
    assert max(sizes) <= most
    assert_logprobs(load_model(folder), batch, outputs)


def test_multi_turn_prefix_reuse_changes_no_logprob_and_is_counted(folder: Path) -> None:
    engine, model = start(folder), load_model(folder)
    batch = prompts(40, 45, 70)
    for turn in range(4):
        outputs = generate(engine, batch)
        assert_logprobs(model, batch, outputs)
        new = prompts(7, 20, 11, seed=turn + 1)
        before = engine.stats().cached_prompt_tokens
        grown = [p + o[0].token_ids + extra for p, o, extra in zip(batch, outputs, new, strict=True)]
        warm = generate(engine, grown)
        cached = engine.stats().cached_prompt_tokens - before
        assert cached == sum(len(p) + len(o[0].token_ids) - 1 for p, o in zip(batch, outputs, strict=True))
        cold = generate(start(folder), grown)
        assert [c[0].logprobs for c in warm] == [pytest.approx(c[0].logprobs, abs=TOLERANCE) for c in cold]
        batch = grown


def test_judge_prompts_with_another_suffix_reuse_the_history_to_the_token(qwen: Path) -> None:
    engine, model = start(qwen), load_model(qwen)
    [history, question, observation] = prompts(53, 9, 12)
    first = [history + question]
    generate(engine, first, n=3)
    second = [history + observation + question]
    before = engine.stats().cached_prompt_tokens
    outputs = generate(engine, second, n=3)
    assert engine.stats().cached_prompt_tokens - before == len(history)
    assert_logprobs(model, second, outputs)


def test_equal_prompts_at_once_are_prefilled_once(qwen: Path) -> None:
    engine = start(qwen)
    batch = prompts(50) * 8
    outputs = generate(engine, batch)
    assert engine.stats().cached_prompt_tokens == 7 * 49
    assert_logprobs(load_model(qwen), batch, outputs)


def test_samples_differ_and_repeat_with_the_seed(qwen: Path) -> None:
    engine = start(qwen)
    [first] = generate(engine, prompts(20), n=4, seed=5)
    [again] = generate(engine, prompts(20), n=4, seed=5)
    [other] = generate(engine, prompts(20), n=4, seed=6)
    assert len({tuple(c.token_ids) for c in first}) == 4
    assert [c.token_ids for c in again] == [c.token_ids for c in first]
    assert [c.token_ids for c in other] != [c.token_ids for c in first]


def test_same_submissions_to_fresh_engines_are_bitwise_equal(qwen: Path) -> None:
    batch = prompts(5, 60, 33, 90)
    assert generate(start(qwen), batch, n=2, seed=None) == generate(start(qwen), batch, n=2, seed=None)


def test_concurrent_requests_equal_requests_one_by_one(qwen: Path) -> None:
    batch = prompts(5, 60, 33, 90, 21, 47)
    together = generate(start(qwen), batch)
    engine = start(qwen)
    for i, (prompt, [expected]) in enumerate(zip(batch, together, strict=True)):
        [[alone]] = generate(engine, [prompt], seed=i)
        assert alone.token_ids == expected.token_ids
        assert alone.logprobs == pytest.approx(expected.logprobs, abs=TOLERANCE)


def test_sampling_follows_the_distribution(qwen: Path) -> None:
    engine = start(qwen, max_num_seqs=512)
    [prompt] = prompts(10)
    [samples] = generate(engine, [prompt], n=512, max_tokens=1, temperature=1.0)
    with torch.no_grad():
        expected = load_model(qwen)(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    counts = torch.bincount(torch.tensor([c.token_ids[0] for c in samples]), minlength=VOCAB)
    assert (counts / 512 - expected).abs().max() < 0.09  # four standard errors of a share


def test_greedy_takes_the_likeliest_token_and_top_k_and_top_p_restrict(qwen: Path) -> None:
    engine, model = start(qwen), load_model(qwen)
    batch = prompts(30)
    greedy = generate(engine, batch, temperature=0.0)
    assert_logprobs(model, batch, greedy, temperature=1.0)
    with torch.no_grad():
        logits = model(torch.tensor([batch[0] + greedy[0][0].token_ids])).logits[0, len(batch[0]) - 1 : -1]
    assert greedy[0][0].token_ids == logits.argmax(-1).tolist()
    assert [c.token_ids for c in generate(engine, batch, n=3, top_k=1)[0]] == [greedy[0][0].token_ids] * 3
    assert [c.token_ids for c in generate(engine, batch, n=3, top_p=1e-6)[0]] == [greedy[0][0].token_ids] * 3


def test_with_its_caches_cleared_an_engine_repeats_what_it_did_when_it_was_new(qwen: Path) -> None:
    """Also where its cache is too small, so that it goes by what it learnt of sessions who waits for whom."""

    async def episode(engine: TransformersEngine, i: int, prompt: list[int], done: list) -> None:
        for turn in range(4):
            sampling = SamplingParams(max_tokens=8 * (1 + (i + turn) % 5), seed=10 * i + turn, session=f"s{i}")
            [completion] = await engine.generate(prompt, sampling)
            done.append((i, turn, completion))
            prompt = prompt + completion.token_ids + [5, 6, 7]

    def play(engine: TransformersEngine) -> tuple[int, list]:
        async def all_episodes() -> list:
            done: list = []
            await asyncio.gather(*(episode(engine, i, [9] * 20 + p, done) for i, p in enumerate(prompts(*[25] * 12))))
            return done

        before = engine.stats().steps
        done = asyncio.run(all_episodes())
        return engine.stats().steps - before, done

    engine = start(qwen, kv_cache_gb=0.0006)
    first = play(engine)
    assert play(engine) != first
    engine.clear_caches()
    assert play(engine) == first


def test_load_weights_takes_effect_and_drops_the_cache(folder: Path) -> None:
    engine, model = start(folder), load_model(folder)
    batch = prompts(40, 41)
    generate(engine, batch)
    perturb(model)
    assert engine.checksum() != checksum(model.state_dict().items(), torch.float32)
    engine.load_weights(3, model.state_dict().items())
    before = engine.stats().cached_prompt_tokens
    outputs = generate(engine, batch)
    assert engine.version == 3
    assert engine.stats().cached_prompt_tokens == before
    assert_logprobs(model, batch, outputs)
    assert engine.checksum() == checksum(model.state_dict().items(), torch.float32)
    assert engine.checksum() == checksum(model.named_parameters(), torch.float32)


def test_adapters_are_added_to_the_files_weights_and_only_what_they_change_is_kept(folder: Path) -> None:
    engine, model = start(folder), load_model(folder)
    base = {name: weight.clone() for name, weight in model.state_dict().items()}
    names = [f"model.layers.{i}.self_attn.q_proj" for i in (0, 1)]
    for used in (names[:1], names[:1], names[1:]):
        model.load_state_dict(base)
        adapters = []
        for name in used:
            out, width = base[f"{name}.weight"].shape
            a, b = torch.randn(4, width), 0.1 * torch.randn(out, 4)
            adapters += [(f"{name}.lora_A", a), (f"{name}.lora_B", b)]
            model.state_dict()[f"{name}.weight"].add_(b @ a)
        engine.load_weights(engine.version + 1, adapters)
        batch = prompts(40, 41)
        assert_logprobs(model, batch, generate(engine, batch))
    assert set(engine._files) == {f"{name}.weight" for name in names}


def test_checksum_casts_to_the_engine_dtype_and_sees_every_name_shape_and_value(folder: Path) -> None:
    engine, model = start(folder, dtype="bfloat16"), load_model(folder)
    assert engine.checksum() == checksum(model.named_parameters(), torch.bfloat16)
    tensors = {"a": torch.arange(6.0), "b": torch.ones(2)}
    same = checksum(reversed(tensors.items()), torch.float32)
    assert same == checksum(tensors.items(), torch.float32)
    for changed in ({"a": torch.arange(6.0).view(2, 3)}, {"a": torch.zeros(6)}, {"c": torch.zeros(1)}):
        assert checksum((tensors | changed).items(), torch.float32) != same


def test_load_weights_names_what_is_missing_or_misshapen_and_the_engine_is_dead(qwen: Path) -> None:
    engine = start(qwen)
    weights = dict(load_model(qwen).named_parameters())
    norm = weights.pop("model.norm.weight")
    with pytest.raises(EngineError, match=r"missing.*model\.norm\.weight"):
        engine.load_weights(1, weights.items())
    with pytest.raises(EngineDead, match="is dead"):
        generate(engine, prompts(5))
    with pytest.raises(EngineError, match=r"'model\.norm\.weight' of shape .63,., expected shape .64,."):
        start(qwen).load_weights(1, [("model.norm.weight", norm[:-1])])


def test_a_prompt_without_room_is_too_long_and_a_response_is_cut_to_the_context(qwen: Path) -> None:
    engine = start(qwen, max_model_len=64)
    with pytest.raises(PromptTooLong, match="64"):
        generate(engine, prompts(64))
    [[cut]] = generate(engine, prompts(60), max_tokens=50)
    assert (len(cut.token_ids), cut.stop_reason) == (4, "length")


def test_stop_tokens_end_a_response_and_are_part_of_it(qwen: Path) -> None:
    stops = tuple(range(2, VOCAB, 2))
    [samples] = generate(start(qwen), prompts(20), n=8, max_tokens=100, stop_token_ids=stops)
    for sample in samples:
        assert sample.stop_reason == "stop"
        assert sample.token_ids[-1] in (*stops, 1)
        assert not set(sample.token_ids[:-1]) & {*stops, 1}
        assert len(sample.logprobs) == len(sample.token_ids)


def test_more_episodes_than_the_cache_holds_are_queued_evicted_and_still_right(qwen: Path) -> None:
    engine, model = start(qwen, kv_cache_gb=0.0006, max_num_seqs=8), load_model(qwen)  # about 39 blocks of 16 tokens
    batch = prompts(*range(30, 90, 4))
    for turn in range(3):
        outputs = generate(engine, batch, n=2)
        assert_logprobs(model, batch, outputs)
        batch = [p + o[1].token_ids + [7, 8 + turn] for p, o in zip(batch, outputs, strict=True)]
    assert engine.stats().cached_prompt_tokens < engine.stats().prompt_tokens


def test_a_request_that_can_never_fit_is_refused_with_the_key_to_raise(qwen: Path) -> None:
    engine = start(qwen, kv_cache_gb=0.0006, max_num_seqs=8)
    with pytest.raises(EngineError, match="max_num_seqs=8"):
        generate(engine, prompts(10), n=9)
    with pytest.raises(EngineError, match="kv_cache_gb"):
        generate(engine, prompts(200), n=8, max_tokens=50)
    with pytest.raises(EngineError, match="kv_cache_gb"):
        start(qwen, kv_cache_gb=0.0001)


def test_a_cancelled_caller_leaves_the_others_and_the_next_weights_alone(qwen: Path) -> None:
    engine, model = start(qwen), load_model(qwen)
    [kept, dropped] = prompts(30, 31)

    async def scenario() -> Completion:
        sampling = SamplingParams(max_tokens=30, seed=1)
        doomed = asyncio.create_task(engine.generate(dropped, sampling))
        other = asyncio.create_task(engine.generate(kept, sampling))
        for _ in range(4):
            await asyncio.sleep(0)
        with pytest.raises(EngineError, match="under way"):
            engine.load_weights(1, model.named_parameters())
        doomed.cancel()
        return (await other)[0]

    completion = asyncio.run(scenario())
    assert_logprobs(model, [kept], [[completion]], temperature=1.0)
    engine.load_weights(1, model.named_parameters())


def test_a_sleeping_engine_refuses_and_wakes_with_an_empty_cache(qwen: Path) -> None:
    engine = start(qwen)
    before = generate(engine, prompts(30))
    engine.sleep()
    with pytest.raises(EngineError, match="wake"):
        generate(engine, prompts(30))
    engine.wake()
    assert generate(engine, prompts(30)) == before
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        generate(engine, prompts(30))
