"""OpenEnv's own server, played by the domain. OPENENV_PYTHON names an interpreter that has the package."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from builders import config_of, episode
from openenv_guest import PYTHON, needs_openenv, start_guess, started

from rlanything.domains.openenv.client import SessionError
from rlanything.domains.registry import make_domain
from rlanything.errors import ConfigError, TaskError


@pytest.fixture(scope="module")
def guess():
    process, url = start_guess()
    yield url
    process.kill()
    process.wait()


def domain(url, **options):
    config = config_of("openenv", url=url, **options)
    config.dataset.prompt = "full"
    return make_domain(config)


@needs_openenv
def test_a_server_is_played_by_json_actions_and_tells_what_is_no_action(guess):
    own = domain(guess, observation="{hint}")
    assert '"guess"' in own.system and '"integer"' in own.system
    said = ["hm", '{"guess": "x"}', '{"guess": -1}', *(f'I try {{"guess": {n}}}.' for n in range(1, 9))]
    seen, score = asyncio.run(episode(own, own.tasks("train")[0], *said[: 3 + _number(own)]))
    assert seen[0].text == "Guess a number from 1 to 8." and [o.invalid for o in seen[1:4]] == [True] * 3
    assert "guess" in seen[2].text and "negative" in seen[3].text
    assert seen[-1].done and score.success and score.reward == 1.0 and own.parse_action("hm", seen[0]).error
    assert not asyncio.run(episode(own, own.tasks("train")[0], '{"guess": 0}'))[1].success


def _number(domain):
    """The number that the first task's seed draws."""
    import random

    return random.Random(domain.tasks("train")[0].payload["seed"]).randint(1, 8)


@needs_openenv
def test_sessions_are_apart_and_what_a_server_has_no_room_for_is_a_fault(guess):
    own = domain(guess, max_sessions=4, arguments={"top": 2}, observation="{observation}")
    assert own.capacity == 4 and own.tasks("train")[0].payload["top"] == 2

    async def many(num):
        tries = (episode(own, own.tasks("train")[i], '{"guess": 9}', '{"guess": 9}') for i in range(num))
        return await asyncio.gather(*tries, return_exceptions=True)

    for seen, _ in asyncio.run(many(4)):
        assert json.loads(seen[-1].text)["tries"] == 2 and "1 to 2" in json.loads(seen[0].text)["hint"]
    faults = [found for found in asyncio.run(many(8)) if not isinstance(found, tuple)]
    assert faults and all(isinstance(fault, SessionError) for fault in faults), faults


@needs_openenv
def test_the_project_s_own_template_needs_one_text_which_a_response_may_be(tmp_path):
    subprocess.run(
        [Path(PYTHON).with_name("openenv"), "init", "echo_it"], cwd=tmp_path, check=True, capture_output=True
    )
    process, url = started([PYTHON, "-m", "echo_it.server.app", "--port", "{port}"], tmp_path)
    try:
        own = domain(url, success="return", success_from=0.1, observation="{echoed_message}")
        assert "the text of message" in own.system
        seen, score = asyncio.run(episode(own, own.tasks("train")[0], "so: \\boxed{hello}", '{"message": "again"}'))
        assert [o.text for o in seen[1:]] == ["hello", "again"] and score.reward > 0
    finally:
        process.kill()
        process.wait()


@needs_openenv
def test_what_no_observation_has_is_named_at_the_start(guess):
    with pytest.raises(TaskError, match="observation: asks for hints; it may use observation, .*hint"):
        domain(guess, observation="{hints} {tries:.2f}")
    with pytest.raises(TaskError, match="success: found solved, expected reward, return, done, or one of"):
        domain(guess, success="solved")
    with pytest.raises(ValueError, match="no JSON object with the keys guess"):
        domain(guess).typed_action("hello", None)


@needs_openenv
def test_variants_are_proven_one_after_the_other_where_the_server_has_one_seat(guess):
    own = domain(guess, arguments={"top": 4})
    [task, *_] = own.tasks("train")

    async def proofs():
        return await asyncio.gather(*(own.rewriting.prove(task) for _ in range(6)), return_exceptions=True)

    assert asyncio.run(proofs()) == [task] * 6


def test_an_address_where_no_openenv_answers_is_named():
    with pytest.raises(TaskError, match="url=http://127.0.0.1:9: no OpenEnv server answers there"):
        domain("http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="dataset.options.url: found '127.0.0.1:8000'"):
        domain("127.0.0.1:8000")
    process, url = started([sys.executable, "-c", OTHER, "{port}"])
    try:
        with pytest.raises(TaskError, match="is no OpenEnv server"):
            domain(url)
    finally:
        process.kill()
        process.wait()


OTHER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Other(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")
HTTPServer(("127.0.0.1", int(sys.argv[1])), Other).serve_forever()
"""
