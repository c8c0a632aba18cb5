"""Environments of the library verifiers, played by the domain. VERIFIERS_PYTHON names an interpreter that has it."""

import asyncio
import os
import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from builders import config_of, episode

from rlanything.domains.base import text_of
from rlanything.domains.parts import RejectedTask
from rlanything.domains.registry import make_domain
from rlanything.domains.verifiers.service import ServiceError
from rlanything.errors import ConfigError, TaskError
from rlanything.types import Task

HERE = Path(__file__).parents[2]
PYTHON = os.environ.get("VERIFIERS_PYTHON") or str(HERE.parent / "cache/verifiers/bin/python")
needs_verifiers = pytest.mark.skipif(
    not Path(PYTHON).exists(), reason="python3 -m venv cache/verifiers && cache/verifiers/bin/pip install verifiers"
)


@pytest.fixture(autouse=True)
def _in_the_folder_of_the_tasksets(monkeypatch):
    monkeypatch.chdir(HERE / "verifiers_world")


def domain(name, **options):
    return make_domain(config_of("verifiers", id=name, python=PYTHON, **options))


@needs_verifiers
def test_a_task_of_one_turn_is_scored_by_its_own_rewards():
    with closing(domain("sums_v1")) as own:
        task = own.tasks("train")[0]
        assert task.payload == {
            "idx": 0,
            "prompt": "1 + 2 = ?",
            "system_prompt": "Answer with a number.",
            "answer": "3",
        }
        seen, right = asyncio.run(episode(own, task, "<think>1, 2</think> 3"))
        assert [m["role"] for m in own.opening(task, seen[0])] == ["system", "user"]
        assert text_of(own.opening(task, seen[0])[0]) == "Answer with a number." and seen[0].text == "1 + 2 = ?"
        assert seen[1].done and seen[1].text == "The end: right 1, length 1." and right.success and right.reward == 1.0
        _, wrong = asyncio.run(episode(own, task, "4"))
        _, empty = asyncio.run(episode(own, task, ""))
        assert not wrong.success and wrong.reward == 0.0 and not empty.success
    with closing(domain("sums_v1", success="length")) as own:
        assert asyncio.run(episode(own, own.tasks("train")[0], "4"))[1].success, "any reward or metric can be asked for"
    with (
        closing(domain("sums_v1", success="rihgt")) as own,
        pytest.raises(ServiceError, match="found rihgt.*right, length"),
    ):
        asyncio.run(episode(own, own.tasks("train")[0], "4"))


@needs_verifiers
def test_an_environment_that_plays_the_user_is_played_turn_by_turn_many_at_once():
    async def all_at_once(own):
        tasks = own.tasks("train")
        plays = [
            episode(own, task, "1", "8", str(task.payload["number"]))
            for task in tasks
            if task.payload["number"] in (3, 5)
        ]
        return await asyncio.gather(*plays, episode(own, tasks[2], "1"))

    with closing(domain("guess_v1", num_task=24)) as own:
        *whole, (cut, unfinished) = asyncio.run(all_at_once(own))
        assert len(whole) == 6
        for seen, score in whole:
            assert [o.text for o in seen] == ["Guess a number from 1 to 8.", "higher", "lower", "The end: won 1."]
            assert score.success and not any(o.done for o in seen[:-1])
        assert not unfinished.success and not cut[-1].done


@needs_verifiers
def test_splits_share_no_task_unless_they_have_a_configuration_of_their_own():
    with closing(domain("sums_v1", num_task=6, splits={"hard": {"top": 20}})) as own:
        splits = [own.tasks(name) for name in ("train", "eval_in_distribution", "eval_out_of_distribution")]
        prompts = [task.payload["prompt"] for split in splits for task in split]
        assert len(prompts) == len(set(prompts)) == 18 and len(own.tasks("hard")) == 6
        with pytest.raises(TaskError, match=r"dataset.options.splits: found no unseen, expected its configuration"):
            own.tasks("unseen")
    with (
        closing(domain("sums_v1", num_task=18)) as own,
        pytest.raises(TaskError, match=r"no task is left for .* first 18"),
    ):
        own.prepare(["train", "eval_in_distribution"])


@needs_verifiers
def test_a_variant_must_be_data_of_the_tasks_kind_and_have_a_first_turn():
    with closing(domain("sums_v1")) as own:
        [task, *_] = own.tasks("train")
        harder = Task(id="v", payload=task.payload | {"prompt": "10 + 2 = ?", "answer": "12"})
        assert asyncio.run(own.rewriting.prove(harder)) == harder
        assert asyncio.run(episode(own, harder, "12"))[1].success
        with pytest.raises(RejectedTask, match="answer"):
            asyncio.run(own.rewriting.prove(Task(id="v", payload={"prompt": "10 + 2 = ?"})))


@needs_verifiers
def test_an_environment_that_breaks_is_a_fault_of_its_episode_alone_and_a_lost_process_starts_again():
    async def beside(own):
        task = own.tasks("train")[0]
        broken = asyncio.create_task(episode(own, task, "break"))
        seen, score = await episode(own, task, "1", str(task.payload["number"]))
        with pytest.raises(ServiceError, match="broken on purpose"):
            await broken
        return score.success

    with closing(domain("guess_v1", num_task=4)) as own:
        assert asyncio.run(beside(own))
        first = own.service._process.pid
        with pytest.raises(ServiceError, match="the process of guess_v1 has ended|does not hear"):
            asyncio.run(episode(own, own.tasks("train")[0], "die"))
        assert asyncio.run(beside(own)) and own.service._process.pid != first


@needs_verifiers
def test_programs_of_the_environment_read_none_of_our_messages_and_a_system_prompt_is_shown_once(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nobody answers

    async def beside_each_other(own):
        return await asyncio.gather(*(episode(own, task, "ok") for task in own.tasks("train") * 2))

    with closing(domain("odd_v1", num_task=4)) as own:
        for seen, score in asyncio.run(beside_each_other(own)):
            assert score.success and score.reward == 1.0 and seen[0].text in {f"{i}?" for i in range(4)}
            said = [text_of(message) for message in own.opening(own.tasks("train")[0], seen[0])]
            assert said == ["Be brief.", seen[0].text]


@needs_verifiers
def test_an_episode_leaves_nothing_open_in_the_environments_process():
    async def many(own):
        tasks = own.tasks("train")
        await asyncio.gather(*(episode(own, task, "4") for task in tasks * 15))

    with closing(domain("sums_v1", num_task=8)) as own:
        asyncio.run(many(own))
        process = psutil.Process(own.service._process.pid)
        before = process.num_fds()
        asyncio.run(many(own))
        assert process.num_fds() < before + 20


@needs_verifiers
def test_a_process_that_does_not_read_holds_up_its_own_episodes_alone():
    async def impatient(own, task):
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(episode(own, task), 1.0)
        return time.monotonic() - started

    with closing(domain("sums_v1")) as own:
        [task, *_] = own.tasks("train")
        own.service._process.send_signal(signal.SIGSTOP)
        long = Task(id="long", payload=task.payload | {"prompt": "x" * 1_000_000})
        assert asyncio.run(impatient(own, long)) < 3.0


@needs_verifiers
def test_the_process_ends_with_its_domain_and_with_the_process_that_started_it():
    own = domain("sums_v1")
    started = own.service._process
    own.close()
    assert started.poll() == 0
    code = (
        "import os, sys\n"
        "from rlanything.domains.verifiers.options import VerifiersOptions\n"
        "from rlanything.domains.verifiers.service import Service\n"
        f"service = Service(VerifiersOptions(id='sums_v1', python={PYTHON!r}))\n"
        "print(service._process.pid, flush=True)\n"
        "os._exit(1)\n"
    )
    told = subprocess.run([os.sys.executable, "-c", code], stdout=subprocess.PIPE, text=True).stdout
    deadline = time.monotonic() + 10
    while psutil.pid_exists(int(told)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not psutil.pid_exists(int(told))


@needs_verifiers
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nothere", {}, "taskset 'nothere' not found"),
        ("sums_v1", {"arguments": {"bottom": 1}}, "bottom"),
        ("sums_v1", {"environment": {"agent": {"harnes": {}}}}, "harnes"),
        ("odd_v1", {"arguments": {"licence": False}}, "no licence for the game"),
        (
            "odd_v1",
            {"splits": {"train": {"task": {"bonus": 5.0}}}},
            "dataset.options.splits changes how tasks are scored",
        ),
    ],
)
def test_what_cannot_be_played_is_named_before_models_are_loaded(name, options, message):
    with closing(domain(name, **options)) as own, pytest.raises(TaskError, match=message):
        own.prepare(["train"])


def test_a_python_without_verifiers_is_told_where_to_put_it():
    for python, said in ((os.sys.executable, "No module named 'verifiers'"), ("/nowhere/python", "No such file")):
        with closing(make_domain(config_of("verifiers", id="sums_v1", python=python))) as own:
            with pytest.raises(TaskError, match=f"{said}.*pip install verifiers"):
                own.tasks("train")
    with pytest.raises(ConfigError, match="id"):
        make_domain(config_of("verifiers"))
