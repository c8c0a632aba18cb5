"""Guests that somebody else runs are reset by the user's command before each episode."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress

import psutil
import pytest
from builders import config_of
from desktop_world import FAKE, endpoint_options
from tiny_vision import write_vision_model

from rlanything.config.schema import EngineConfig, ModelConfig, RolloutConfig
from rlanything.domains.osworld.desktops.backends import make_pool
from rlanything.domains.osworld.desktops.client import DesktopFault
from rlanything.domains.osworld.desktops.endpoint import read_address
from rlanything.domains.osworld.world import payload
from rlanything.domains.registry import make_domain
from rlanything.engines.chat import Chat
from rlanything.engines.chat_model import start_chat_model
from rlanything.errors import TaskError
from rlanything.rollout.episode import Player
from rlanything.rollout.judging import Judge
from rlanything.types import Status, Task


def test_endpoint_is_reset_before_each_episode_and_serves_one_at_a_time(guests, tmp_path):
    _, port = guests()
    told = tmp_path / "resets"
    options = endpoint_options(port, reset_command=["sh", "-c", f"echo {{endpoint}} {{index}} >> {told}"])

    async def run():
        pool = make_pool(options)
        first = await pool.lease()
        waiting = asyncio.create_task(pool.lease())
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await pool.release(first)
        await pool.release(await waiting)

    asyncio.run(run())
    assert told.read_text() == f"127.0.0.1:{port} 0\n" * 2


@pytest.mark.parametrize(
    ("command", "told"),
    [(["false"], "reset_command ended with 1"), (["sleep", "60"], "did not end in 0.5 s")],
)
def test_reset_that_fails_names_the_endpoint(guests, command, told):
    _, port = guests()
    options = endpoint_options(port, reset_command=command).model_copy(update={"reset_s": 0.5})

    async def run():
        pool = make_pool(options)
        with pytest.raises(DesktopFault, match=f"{told} for 127.0.0.1:{port}"):
            await pool.lease()
        with pytest.raises(DesktopFault):  # the guest is free again
            await pool.lease()

    asyncio.run(run())


def sleeps(length: str) -> bool:
    """True if a `sleep` of this length runs."""
    return any(process.info["cmdline"] == ["sleep", length] for process in psutil.process_iter(["cmdline"]))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.005, 0.3])
def test_run_that_ends_while_a_guest_is_reset_ends_the_command_and_itself(after_s, tmp_path):
    lives, length = tmp_path / "lives", f"20.{time.time_ns()}"
    options = endpoint_options(1, reset_command=["sh", "-c", f"sleep {length}; touch {lives}"])

    async def run():
        lease = asyncio.create_task(make_pool(options).lease())
        await asyncio.sleep(after_s)
        assert not lease.done()

    started = time.monotonic()
    asyncio.run(run())  # it cancels all tasks, those of asyncio itself, too
    assert time.monotonic() - started < 15 and not lives.exists()
    until_ended(length)


RESETTING = """
import asyncio, sys
from desktop_world import endpoint_options
from rlanything.domains.osworld.desktops.backends import make_pool
options = endpoint_options(1, reset_command=["sleep", sys.argv[1]]).model_copy(update={"reset_s": 60.0})
asyncio.run(make_pool(options).lease())
"""


def until_ended(length: str) -> None:
    """Wait until no such `sleep` runs: a killed one may still be listed."""
    until = time.monotonic() + 10
    while sleeps(length):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_trainer_that_is_killed_while_a_guest_is_reset_takes_the_command_with_it():
    length = f"60.{time.time_ns()}"
    env = os.environ | {"PYTHONPATH": ":".join(sys.path)}
    trainer = subprocess.Popen([sys.executable, "-c", RESETTING, length], env=env)
    try:
        while not sleeps(length):
            assert trainer.poll() is None
            time.sleep(0.05)
    finally:
        trainer.kill()
        trainer.wait()
    until_ended(length)


def test_a_daemon_that_a_reset_leaves_behind_holds_nobody_up(guests):
    _, port = guests()
    options = endpoint_options(port, reset_command=["sh", "-c", "sleep 20 & echo reset"])

    async def run():
        await make_pool(options).lease()

    started = time.monotonic()
    asyncio.run(run())
    assert time.monotonic() - started < 15


@pytest.mark.parametrize("second", ["", "die"])
def test_guest_that_dies_in_an_episode_is_replaced_once_and_only_a_whole_episode_counts(guests, tmp_path, second):
    process, port = guests("die")
    told, pid = tmp_path / "resets", tmp_path / "pid"
    # The reset brings another guest up once the first one has died, as that of a virtual machine would.
    another = f"{sys.executable} {FAKE} {port} '{second}' > /dev/null & echo $! > {pid}"
    anew = f"echo reset >> {told}; [ $(wc -l < {told}) = 1 ] || {{ {another}; }}"
    check = {"kind": "command", "command": ["echo", "yes"], "output": "no"}
    family = {"id": "f", "verifiers": {"a": {"instruction": "x", "evaluator": {"checks": [check]}}}}
    (tmp_path / "families.jsonl").write_text(json.dumps(family))
    options = endpoint_options(port, reset_command=["sh", "-c", anew]).model_copy(update={"reset_s": 60.0})
    config = config_of("osworld", **options.model_dump())
    config.experiment.output_dir = config.dataset.path = str(tmp_path)
    config.rollout = RolloutConfig(max_interaction_step=3, max_response_tokens=8, num_retry=1, env_timeout_s=30)
    model = ModelConfig(path=str(write_vision_model(tmp_path / "model")))
    engine = EngineConfig(kind="transformers", dtype="float32", max_model_len=4096, max_images=4)
    policy = start_chat_model(model, engine, 0, tmp_path / "engine.log", Chat(model))
    task = Task(id="f", payload=payload("family/f", "a", "x"))

    async def play():
        return await Player(domain, policy, config.rollout, "seed", Judge()).group(task, 1, lambda: None)

    try:
        with closing(make_domain(config)) as domain:
            group = asyncio.run(play())
    finally:
        with suppress(ProcessLookupError, FileNotFoundError):  # it has died, as it should, or never began
            os.kill(int(pid.read_text()), signal.SIGKILL)
    [trajectory] = group.trajectories
    assert process.wait(5) == 1 and told.read_text().count("reset") == 2 and trajectory.retries == 1
    if second:
        assert trajectory.status is Status.ENV_ERROR and trajectory.score is None and not group.valid
    else:
        assert trajectory.status is Status.TRUNCATED and trajectory.score.reward == 0.0 and group.valid == [trajectory]


def test_guest_that_never_answers_is_named():
    async def run():
        with pytest.raises(DesktopFault, match="127.0.0.1:1 was not ready in 0.5 s"):
            await make_pool(endpoint_options(1).model_copy(update={"reset_s": 0.5})).lease()

    asyncio.run(run())


def test_guest_that_stays_black_is_named(guests):
    _, port = guests("black")

    async def run():
        with pytest.raises(DesktopFault, match=f"127.0.0.1:{port} was not ready in 0.5 s: .*shows a black screen"):
            await make_pool(endpoint_options(port).model_copy(update={"reset_s": 0.5})).lease()

    asyncio.run(run())


@pytest.mark.parametrize("text", ["", "host:x", "host:1:2:3:4", ":5000", "host:70000"])
def test_address_that_cannot_be_read_is_shown(text):
    with pytest.raises(TaskError, match="expected host:5000:9222:8080"):
        read_address(text)


def test_address_without_ports_takes_osworlds():
    assert read_address("desk7").server == 5000 and read_address("desk7:6000").chromium == 9222
