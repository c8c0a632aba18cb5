"""The vLLM engine, really started on this machine, against a plain Hugging Face forward pass."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from uuid import uuid4

import engine_helpers
import psutil
import pytest
import torch
from engine_helpers import VOCAB, generate, load_model, perturb, prompts, save_model
from transformers import PreTrainedModel

from rlanything.config.schema import EngineConfig, ModelConfig
from rlanything.engines.base import Completion, Engine, EngineDead, EngineError, PromptTooLong, SamplingParams
from rlanything.weights.checksum import checksum
from rlanything.weights.transfer import IncomingWeights, pieces
from rlanything.weights.transfer.ipc import IpcMeeting

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]
KINDS = ["in_process", "asynchronous"]
# vLLM multiplies float32 in TF32 on a GPU, with 10 bits of mantissa.
assert_logprobs = partial(engine_helpers.assert_logprobs, tolerance=5e-2 if torch.cuda.is_available() else 1e-4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model("qwen3", tmp_path_factory.mktemp("qwen3"), head_dim=64)


def start(kind: str, folder: Path, log: Path, sleeps: bool = False) -> Engine:
    from rlanything.engines.vllm.asynchronous import AsyncVLLM
    from rlanything.engines.vllm.in_process import InProcessVLLM

    engine = AsyncVLLM if kind == "asynchronous" else InProcessVLLM
    shares = {"kv_cache_gb": 0.05, "gpu_memory_utilization": 0.2}
    config = EngineConfig(dtype="float32", max_model_len=256, max_num_seqs=16, **shares)
    return engine(ModelConfig(path=str(folder)), config, 0, log, sleeps)


@pytest.fixture(scope="module", autouse=True)
def small_pieces() -> Iterator[None]:
    """The weights come in several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE_BYTES", 1 << 16)
        yield


@pytest.fixture(scope="module", params=KINDS)
def engine(folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    threads = torch.get_num_threads()
    engine = start(request.param, folder, folder / "logs" / "engine.log")
    assert torch.get_num_threads() == threads
    yield engine
    engine.close()


@pytest.fixture
def model(engine: Engine, folder: Path) -> PreTrainedModel:
    """The weights of the folder, in the engine too."""
    model = load_model(folder)
    engine.load_weights(0, model.named_parameters())
    return model


def test_cleared_caches_are_empty(engine: Engine, model: PreTrainedModel) -> None:
    batch = prompts(70)
    generate(engine, batch)
    before = engine.stats().cached_prompt_tokens
    generate(engine, batch)
    warm = engine.stats().cached_prompt_tokens
    engine.clear_caches()
    assert_logprobs(model, batch, generate(engine, batch))
    assert engine.stats().cached_prompt_tokens == warm > before


def test_the_checksum_before_any_load_is_that_of_the_files(folder: Path, tmp_path: Path) -> None:
    engine = start("in_process", folder, tmp_path / "engine.log")
    assert engine.checksum() == checksum(load_model(folder).named_parameters(), torch.float32)
    engine.close()


def test_logprobs_are_those_of_the_sampling_temperature(engine: Engine, model: PreTrainedModel) -> None:
    batch = prompts(1, 17, 40, 100)
    assert_logprobs(model, batch, generate(engine, batch, n=3))


def test_new_weights_show_in_the_logprobs_of_a_tied_model(engine: Engine, model: PreTrainedModel) -> None:
    batch = prompts(70, 71)
    generate(engine, batch)
    perturb(model)
    engine.load_weights(7, model.named_parameters())
    before = engine.stats().cached_prompt_tokens
    outputs = generate(engine, batch)
    assert engine.stats().cached_prompt_tokens == before
    assert_logprobs(model, batch, outputs)
    assert engine.version == 7
    assert engine.checksum() == checksum(model.named_parameters(), torch.float32)


def test_adapters_are_added_to_the_files_weights_and_replaced(engine: Engine, model: PreTrainedModel) -> None:
    files = engine.checksum()
    name = "model.layers.0.self_attn.q_proj"
    out, width = model.get_parameter(f"{name}.weight").shape
    for seed in (0, 1):
        torch.manual_seed(seed)
        adapters = [(f"{name}.lora_A", torch.randn(4, width)), (f"{name}.lora_B", 0.1 * torch.randn(out, 4))]
        engine.load_weights(9, adapters)
        assert engine.checksum() == checksum(adapters, torch.float32) != files
    with torch.no_grad():
        model.get_parameter(f"{name}.weight").add_(adapters[1][1] @ adapters[0][1])
    batch = prompts(40, 41)
    assert_logprobs(model, batch, generate(engine, batch))


def test_the_next_turn_reuses_the_cached_prefix(engine: Engine, model: PreTrainedModel) -> None:
    [prompt] = prompts(100)
    [[first]] = generate(engine, [prompt])
    before = engine.stats().cached_prompt_tokens
    grown = [prompt + first.token_ids + [5, 6, 7]]
    outputs = generate(engine, grown)
    assert engine.stats().cached_prompt_tokens - before >= 96
    assert_logprobs(model, grown, outputs)


def test_samples_differ_and_repeat_with_the_seed(engine: Engine, model: PreTrainedModel) -> None:
    [first] = generate(engine, prompts(20), n=4, seed=5)
    [again] = generate(engine, prompts(20), n=4, seed=5)
    [other] = generate(engine, prompts(20), n=4, seed=6)
    assert len({tuple(c.token_ids) for c in first}) == 4
    assert [c.token_ids for c in again] == [c.token_ids for c in first]
    assert not {tuple(c.token_ids) for c in first} & {tuple(c.token_ids) for c in other}


def test_many_seeded_prompts_beyond_one_step_survive(engine: Engine, model: PreTrainedModel) -> None:
    """vLLM 0.32 dies on a CPU where it splits the prompt of a seeded request over two steps."""
    batch = [[2 + (7 * i + 3 * j) % 250 for j in range(200)] for i in range(48)]
    outputs = generate(engine, batch, max_tokens=2)
    assert_logprobs(model, batch, outputs)


def test_stop_tokens_are_part_of_the_response(engine: Engine, model: PreTrainedModel) -> None:
    stops = tuple(range(2, VOCAB, 2))
    [samples] = generate(engine, prompts(20), n=4, max_tokens=60, stop_token_ids=stops)
    for sample in samples:
        assert sample.stop_reason == "stop"
        assert sample.token_ids[-1] in (*stops, 1)
        assert len(sample.logprobs) == len(sample.token_ids)


def test_a_prompt_without_room_is_too_long_and_a_response_is_cut(engine: Engine, model: PreTrainedModel) -> None:
    with pytest.raises(PromptTooLong, match="256"):
        generate(engine, prompts(256))
    [[cut]] = generate(engine, prompts(250), max_tokens=50, stop_token_ids=())
    assert (len(cut.token_ids), cut.stop_reason) in {(6, "length")} | {(i, "stop") for i in range(1, 7)}


def test_a_cancelled_caller_leaves_the_others_alone(engine: Engine, model: PreTrainedModel) -> None:
    [kept, dropped] = prompts(30, 31)

    async def scenario() -> Completion:
        sampling = SamplingParams(max_tokens=30, seed=1, temperature=0.8)
        doomed = asyncio.create_task(engine.generate(dropped, sampling))
        other = asyncio.create_task(engine.generate(kept, sampling))
        for _ in range(4):
            await asyncio.sleep(0)
        doomed.cancel()
        return (await other)[0]

    assert_logprobs(model, [kept], [[asyncio.run(scenario())]])
    engine.load_weights(1, model.named_parameters())


def test_a_cancelled_caller_is_no_request_under_way_for_new_weights(engine: Engine, model: PreTrainedModel) -> None:
    async def scenario() -> None:
        doomed = [asyncio.create_task(engine.generate(p, SamplingParams(max_tokens=200))) for p in prompts(30, 31, 32)]
        await asyncio.sleep(0.02)
        with pytest.raises(EngineError, match=r"[1-3] requests are under way"):
            engine.load_weights(1, model.named_parameters())
        for task in doomed:
            task.cancel()
        await asyncio.gather(*doomed, return_exceptions=True)
        engine.load_weights(1, model.named_parameters())

    asyncio.run(scenario())
    batch = prompts(20)
    assert_logprobs(model, batch, generate(engine, batch))


@pytest.mark.slow
def test_two_engines_share_the_process_and_closing_one_keeps_the_other_and_torch_distributed(
    engine: Engine, model: PreTrainedModel, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "second.log"
    second = start("in_process", folder, log)
    batch = prompts(30)
    assert_logprobs(model, batch, generate(second, batch))
    second.close()
    with pytest.raises(EngineError, match="closed"):
        generate(second, batch)
    assert_logprobs(model, batch, generate(engine, batch))
    ones = torch.ones(2, device="cuda" if torch.distributed.get_backend() == "nccl" else "cpu")
    torch.distributed.all_reduce(ones)
    assert ones.tolist() == [1.0, 1.0]
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
    assert "Initializing a V1 LLM engine" in log.read_text()


def test_an_engine_takes_weights_from_a_process_on_its_device_before_it_has_its_cache_back(
    folder: Path, tmp_path: Path
) -> None:
    """As replicas do that share accelerators with learners. On a CPU nothing sleeps."""
    from vllm.platforms import current_platform

    device = torch.device("cpu" if current_platform.is_cpu() else "cuda")
    model = load_model(folder)
    engine = start("asynchronous", folder, tmp_path / "engine.log", sleeps=True)
    batch = prompts(40, 41)
    assert_logprobs(model, batch, generate(engine, batch))
    expected = tuple((name, tuple(p.shape), "float32") for name, p in model.named_parameters())
    meeting = IpcMeeting(name=uuid4().hex, senders=(0,), on_accelerators=device.type == "cuda")
    for version in (1, 2):
        engine.sleep()
        perturb(model)
        engine.wake(cache=False)
        with ThreadPoolExecutor() as pool:
            incoming = IncomingWeights(meeting=meeting, first_worker=0, expected=expected)
            loaded = pool.submit(engine.load_weights, version, incoming)
            if version == 1:
                sender = meeting.sender(0)
            for name, parameter in model.named_parameters():
                sender.send(name, parameter.detach().to(device))
            sender.finish()
            loaded.result()
        engine.wake()
        assert engine.checksum() == checksum(model.named_parameters(), torch.float32)
        assert_logprobs(model, batch, generate(engine, batch))
    engine.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_vllm_cannot_start_names_the_log_and_leaves_no_thread(kind: str, tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(EngineError, match=r"engine\.log"):
        start(kind, tmp_path, tmp_path / "engine.log")
    assert threading.active_count() == before


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_transfer_that_fails_and_a_close_leave_nobody_waiting_and_no_answer_cut_short(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    async def closed_under_way(engine: Engine) -> None:
        asked = [asyncio.create_task(engine.generate(p, SamplingParams(max_tokens=200))) for p in prompts(30, 31)]
        await asyncio.sleep(0.02)
        engine.close()
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(outcome, EngineDead) or len(outcome[0].token_ids) == 200 or 1 in outcome[0].token_ids

    asyncio.run(closed_under_way(start(kind, folder, tmp_path / "engine.log")))

    engine = start(kind, folder, tmp_path / "engine.log")
    unknown = {"no.such.lora_A": torch.zeros(2, 4), "no.such.lora_B": torch.zeros(4, 2)}
    with pytest.raises(Exception, match=r"no\.such"):
        engine.load_weights(1, unknown.items())
    for use in (lambda: engine.load_weights(1, unknown.items()), lambda: generate(engine, prompts(5))):
        with pytest.raises(EngineDead, match="is dead"):
            use()
    assert engine.version == 0
    engine.close()


@pytest.mark.slow
def test_a_spawned_process_of_an_asynchronous_engine_logs_and_ends_with_the_one_that_started_it(
    folder: Path, tmp_path: Path
) -> None:
    """As in a replica: a Ray actor can only spawn."""
    program = f"""
import sys
import threading
from pathlib import Path
from rlanything.config.schema import EngineConfig, ModelConfig
from rlanything.engines.vllm.asynchronous import AsyncVLLM

if __name__ == "__main__":
    config = EngineConfig(dtype="float32", max_model_len=256, max_num_seqs=16, kv_cache_gb=0.05)
    engine = AsyncVLLM(ModelConfig(path={str(folder)!r}), config, 0, Path({str(tmp_path / "engine.log")!r}))
    print("up", flush=True)
    sys.stdin.read()
"""
    script = tmp_path / "program.py"
    script.write_text(program)
    root = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *sys.path])
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": root, "VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
    )
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    assert "Initializing a V1 LLM engine" in (tmp_path / "engine.log").read_text()
    children = psutil.Process(process.pid).children(recursive=True)
    assert any("EngineCore" in " ".join(child.cmdline()) for child in children)
    process.kill()
    process.wait()
    _, left = psutil.wait_procs(children, timeout=10)
    assert not left
