"""An engine in a process of its own gives what the same engine gives in this one, and dies loudly and wholly."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest
import torch

from rlanything.config.schema import EngineConfig, ModelConfig
from rlanything.engines import check_model, start_engine
from rlanything.engines.base import Completion, Engine, EngineError, PromptTooLong, SamplingParams
from rlanything.engines.chat_model import start_chat_model

CONFIG = EngineConfig(
    kind="transformers", dtype="float32", max_model_len=128, max_num_seqs=32, kv_cache_gb=0.01, own_process=True
)


def start(world, tmp_path, **changes) -> Engine:
    return start_engine(
        ModelConfig(path=str(world.model)), CONFIG.model_copy(update=changes), 0, tmp_path / "engine.log"
    )


@pytest.fixture
def engine(world, tmp_path):
    engine = start(world, tmp_path)
    yield engine
    engine.close()


def test_a_conversation_is_encoded_over_there_into_the_same_prompt(world, tmp_path):
    config = ModelConfig(path=str(world.model))
    model = start_chat_model(config, CONFIG, 0, tmp_path / "engine.log", check_model(config, CONFIG))
    messages = [{"role": "user", "content": "a mug"}]
    params = SamplingParams(max_tokens=4, seed=1, stop_token_ids=model.chat.stop_ids)

    async def both():
        asked = await model.ask(messages, num=2, temperature=1.0, max_tokens=4, seed=1)
        return asked, await model.engine.generate(model.chat.prompt(messages).ids, params, n=2)

    with closing(model.engine):
        (prompt, replies), generated = asyncio.run(both())
    assert prompt == model.chat.prompt(messages)
    assert [reply.ids for reply in replies] == [c.token_ids for c in generated]


def gone(pid: int) -> bool:
    """Whether the process ended; one that nobody waited for is a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def sample(engine: Engine, count: int) -> list[list[Completion]]:
    requests = [([5 + i, 6, 7], SamplingParams(max_tokens=8, seed=i)) for i in range(count)]
    return list(await asyncio.gather(*(engine.generate(prompt, params, n=2) for prompt, params in requests)))


@pytest.fixture
def one_thread():
    """As many as the other process has: sums may differ in their last bit with another number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_same_tokens_and_logprobs_as_in_this_process(world, tmp_path, engine, one_thread):
    here = start(world, tmp_path, own_process=False)
    assert asyncio.run(sample(engine, 20)) == asyncio.run(sample(here, 20))
    assert engine.stats().generated_tokens == here.stats().generated_tokens > 0


def test_new_weights_arrive_whole(world, tmp_path, engine):
    here = start(world, tmp_path, own_process=False)
    before = engine.checksum()
    changed = [(name, weight + 0.5) for name, weight in here.model.named_parameters()]
    for target in (engine, here):
        target.load_weights(1, [(name, weight.detach().clone()) for name, weight in changed])
    assert before != engine.checksum() == here.checksum()
    assert engine.version == 1


def test_a_request_that_cannot_be_served_raises_and_the_others_go_on(engine):
    async def both() -> tuple:
        too_long = engine.generate([5] * 128, SamplingParams())
        return await asyncio.gather(too_long, engine.generate([5], SamplingParams()), return_exceptions=True)

    refused, served = asyncio.run(both())
    assert isinstance(refused, PromptTooLong) and len(served) == 1


def test_a_cancelled_request_stays_without_consequence(engine):
    async def cancel() -> list[list[Completion]]:
        given_up = asyncio.create_task(engine.generate([9], SamplingParams()))
        await asyncio.sleep(0)
        given_up.cancel()
        return await sample(engine, 2)

    assert len(asyncio.run(cancel())) == 2
    assert engine.checksum()


def test_a_killed_process_fails_what_is_under_way_and_what_comes_later(engine):
    async def kill() -> None:
        engine.checksum()  # it has started
        waiting = asyncio.create_task(engine.generate([5] * 100, SamplingParams(max_tokens=20), n=16))
        await asyncio.sleep(0)
        os.kill(engine._process.pid, signal.SIGKILL)
        await waiting

    with pytest.raises(EngineError, match="ended with exit code -9"):
        asyncio.run(kill())
    with pytest.raises(EngineError, match="died earlier"):
        engine.checksum()


def test_a_model_that_cannot_be_served_is_refused_with_the_reason(world, tmp_path):
    engine = start(world, tmp_path, kv_cache_gb=1e-6)
    with pytest.raises(EngineError, match="kv_cache_gb"):
        engine.checksum()
    engine.close()


def test_close_leaves_no_process(engine):
    engine.checksum()
    pid = engine._process.pid
    engine.close()
    assert gone(pid)


@pytest.mark.parametrize(
    ("end", "status"), [("os.kill(os.getpid(), 9)", -9), pytest.param("sys.exit(3)", 3, marks=pytest.mark.slow)]
)
def test_a_parent_that_is_killed_or_forgets_to_close_leaves_no_process(world, tmp_path, end, status):
    script = (
        "import os, sys; from pathlib import Path\n"
        "from rlanything.config.schema import EngineConfig, ModelConfig\n"
        "from rlanything.engines.process import ProcessEngine\n"
        "if __name__ == '__main__':\n"
        f"    engine = ProcessEngine(ModelConfig(path={str(world.model)!r}), EngineConfig(kind='transformers', "
        "dtype='float32', max_model_len=128, kv_cache_gb=0.01), 0, Path('engine.log'))\n"
        "    engine.checksum()\n"
        "    print(engine._process.pid, flush=True)\n"
        f"    {end}\n"
    )
    (tmp_path / "parent.py").write_text(script)
    parent = subprocess.run(
        [sys.executable, "parent.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert parent.returncode == status, parent.stderr
    deadline = time.monotonic() + 20
    while not gone(int(parent.stdout)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert gone(int(parent.stdout))
