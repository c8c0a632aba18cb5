"""Guests that somebody else runs are reset by the user's command before each episode."""

from __future__ import annotations

import asyncio
import time

import pytest
from desktop_world import endpoint_options

from rlanything.domains.osworld.desktops.backends import make_pool
from rlanything.domains.osworld.desktops.client import DesktopFault
from rlanything.domains.osworld.desktops.endpoint import read_address
from rlanything.errors import TaskError


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


@pytest.mark.timeout(60)
@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.005, 0.3])
def test_run_that_ends_while_a_guest_is_reset_ends_the_command_and_itself(after_s, tmp_path):
    lives = tmp_path / "lives"
    options = endpoint_options(1, reset_command=["sh", "-c", f"sleep 20; touch {lives}"])

    async def run():
        lease = asyncio.create_task(make_pool(options).lease())
        await asyncio.sleep(after_s)
        assert not lease.done()

    started = time.monotonic()
    asyncio.run(run())  # it cancels all tasks, those of asyncio itself, too
    assert time.monotonic() - started < 15 and not lives.exists()


def test_a_daemon_that_a_reset_leaves_behind_holds_nobody_up(guests):
    _, port = guests()
    options = endpoint_options(port, reset_command=["sh", "-c", "sleep 20 & echo reset"])

    async def run():
        await make_pool(options).lease()

    started = time.monotonic()
    asyncio.run(run())
    assert time.monotonic() - started < 15


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
