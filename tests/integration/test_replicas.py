"""Replicas of an engine, one of which dies or does not answer: at work, while weights are sent, while they sleep."""

import asyncio
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray
from runs_helpers import spread_config
from transformers import AutoTokenizer

from rlanything.algorithm.samples import sample_sets
from rlanything.cluster.cluster import Cluster
from rlanything.config.schema import Config
from rlanything.engines.base import EngineError, SamplingParams
from rlanything.engines.chat import Chat
from rlanything.plan.plan import make_plan
from rlanything.runs.folder import RunFolder
from rlanything.types import Sample

pytestmark = pytest.mark.integration
EVERY_CORE = True


ENGINES = [("transformers", 1), *(pytest.param(("vllm", size), marks=pytest.mark.slow) for size in (1, 2))]


@pytest.fixture
def straight(request):
    """How weights go from learners to workers without the object store."""
    return getattr(request, "param", "broadcast")


@pytest.fixture
def num_restart(request):
    """How often a replica is started anew."""
    return getattr(request, "param", 3)


@pytest.fixture
def step_timeout_s(request):
    """How long an engine may hang."""
    return getattr(request, "param", 600.0)


@pytest.fixture(params=ENGINES, ids=lambda p: f"{p[0]}_{p[1]}")
def cluster(world, tmp_path, request, monkeypatch, straight, num_restart, step_timeout_s):
    """Two replicas of the policy (of one process each, or of two), two learner ranks (ZeRO 3) on one node."""
    from make_tiny_models import make_model

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")  # as under torchrun: the ranks meet all the same
    kind, size = request.param
    model, tokenizer = tmp_path / "model", AutoTokenizer.from_pretrained(world.model)
    make_model(tokenizer, hidden=64 * size, layers=2, seed=0).save_pretrained(model)  # an attention head for each
    tokenizer.save_pretrained(model)
    config: Config = spread_config(world.games, model, tmp_path, "run", kind)
    config.engine.policy.tensor_parallel_size, config.engine.policy.step_timeout_s = size, step_timeout_s
    config.experiment.num_node, config.training.policy.zero_stage = 1, 3
    config.cluster.weight_transfer, config.cluster.num_restart = straight, num_restart
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    folder = RunFolder(config)
    Path(folder.logs).mkdir(parents=True)
    plan = replace(make_plan(config, learns=True), roles=("policy",), learners=("policy",))
    cluster = Cluster(plan, folder, data=None)
    yield cluster
    cluster.close()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def train(learner, version: int) -> None:
    """Move all weights: an update on tokens that nobody sampled."""
    tokens = np.random.default_rng(version).integers(3, 60, 24)
    shown = np.r_[np.zeros(8), np.ones(16)]
    learner.update(sample_sets([Sample(tokens, shown, shown, -3.0 * shown, key=str(i)) for i in range(4)]))


def transfer(learner, engine, version: int) -> bool:
    """Whether the weights of an update came straight; they are the learner's in any case."""
    train(learner, version)
    before = engine.checksum()
    weights = learner.weights(engine.dtype)
    engine.load_weights(version, weights)
    assert before != engine.checksum() == learner.checksum(engine.dtype)
    return weights.stage().sent


def policy_engine(cluster):
    """The policy's replicas as one engine."""
    return cluster.chat_model("policy", Chat(cluster.config.model.policy)).engine


def process_ids(engine) -> list[int]:
    """Of the replicas, once all of them are up."""
    return [int(process.rsplit("/", 1)[1]) for process in engine._call_all("process_id")]


def core_of(process_id: int) -> int:
    """The process in which a replica's vLLM schedules."""
    [core] = [p.pid for p in psutil.Process(process_id).children() if "EngineCore" in " ".join(p.cmdline())]
    return core


def kill(process_id: int) -> None:
    """A replica's process; those that vLLM started for it must end too, whose memory the next one needs."""
    workers = psutil.Process(process_id).children(recursive=True)
    os.kill(process_id, signal.SIGKILL)
    _, left = psutil.wait_procs(workers, timeout=20)
    assert not left


@pytest.mark.slow
@pytest.mark.parametrize("straight", ["broadcast", "ipc"], indirect=True)
def test_weights_arrive_straight_also_where_a_replica_dies(cluster, straight, monkeypatch):
    engine = policy_engine(cluster)
    learner = cluster.learner("policy", 100, 1.0)
    assert [transfer(learner, engine, version) for version in (1, 2, 3)] == [False, True, True]

    kill(process_ids(engine)[0])  # between two transfers: they meet anew
    assert transfer(learner, engine, 4)

    meet = engine._meet

    def meet_and_lose_one(weights):
        meeting = meet(weights)
        kill(process_ids(engine)[1])
        return meeting

    monkeypatch.setattr(engine, "_meet", meet_and_lose_one)  # in the middle of one: the store has them
    assert not transfer(learner, engine, 5)
    alone = straight == "ipc" and engine.num_worker == 1  # each replica has a rank of its own to take weights from
    assert cluster.faults()["engine/policy_restarts"] == (2 if alone else 3)  # else the other had half of them too
    monkeypatch.undo()
    assert transfer(learner, engine, 6)


def ask(engine, num: int) -> list[list[int]]:
    """What sessions of their own get at the same time, each of a seed of its own."""

    async def all_at_once():
        params = [SamplingParams(max_tokens=24, seed=i, session=str(i)) for i in range(num)]
        return await asyncio.gather(*(engine.generate([3, 4, 5 + i], p) for i, p in enumerate(params)))

    return [completions[0].token_ids for completions in asyncio.run(all_at_once())]


@pytest.mark.slow
@pytest.mark.parametrize("step_timeout_s", [60.0], indirect=True)  # two vLLMs of up to three processes share the cores
def test_a_replica_whose_engine_breaks_or_that_is_stopped_is_started_anew_and_its_requests_are_asked_again(cluster):
    def break_it(replica) -> None:
        """Its next forward pass raises, as where a device is lost. (Ray sends a function of a test by its code.)"""

        def step(*_, **__):
            raise RuntimeError("device lost")

        replica.engine._forward = step

    vllm = cluster.config.engine.policy.kind == "vllm"
    engine = policy_engine(cluster)
    learner = cluster.learner("policy", 100, 1.0)
    transfer(learner, engine, 1)
    expected, first = ask(engine, 6), process_ids(engine)

    if vllm:
        for worker in psutil.Process(first[0]).children(recursive=True):
            worker.kill()
    else:
        ray.get(engine.replicas[0].__ray_call__.remote(break_it))
    assert ask(engine, 6) == expected
    second = process_ids(engine)
    assert second[0] != first[0] and second[1] == first[1]
    faults = cluster.faults()
    assert faults["engine/policy_restarts"] == 1 and faults["engine/policy_reissued"] == 3
    reason = "the engine broke" if vllm else "device lost"
    assert reason in (cluster.folder.logs / "engine_policy_0.log").read_text()

    core = core_of(second[1]) if vllm else second[1]
    ended = [psutil.Process(process_id) for process_id in {second[1], core}]
    os.kill(core, signal.SIGSTOP)
    assert ask(engine, 6) == expected
    assert process_ids(engine)[1] != second[1]
    assert not psutil.wait_procs(ended, timeout=20)[1]  # orphans are this process's, to be waited for
    assert cluster.faults()["engine/policy_restarts"] == 2
    assert engine.checksum() == learner.checksum(engine.dtype)


@pytest.mark.slow
def test_a_replica_that_breaks_in_a_transfer_is_started_anew_with_the_weights(cluster):
    def half_way(replica) -> None:
        def load(*_):
            raise RuntimeError("out of memory")

        replica.engine.load_weights = load

    engine = policy_engine(cluster)
    learner = cluster.learner("policy", 100, 1.0)
    ray.get(engine.replicas[1].__ray_call__.remote(half_way))
    transfer(learner, engine, 1)
    assert cluster.faults()["engine/policy_restarts"] == 1


@pytest.mark.slow
def test_a_replica_whose_vllm_dies_in_a_transfer_is_started_anew_with_the_weights(cluster):
    if cluster.config.engine.policy.kind != "vllm":
        pytest.skip("the small engine has no process of its own")
    engine = policy_engine(cluster)
    learner = cluster.learner("policy", 100, 1.0)
    for version in (1, 2):  # the second one is a broadcast
        transfer(learner, engine, version)
    core = core_of(process_ids(engine)[1])
    os.kill(core, signal.SIGSTOP)  # so that it is still at it when it dies
    killer = threading.Timer(5.0, os.kill, (core, signal.SIGKILL))
    killer.start()
    train(learner, 3)
    engine.load_weights(3, learner.weights(engine.dtype))
    assert not killer.is_alive()
    assert engine.checksum() == learner.checksum(engine.dtype)
    assert cluster.faults()["engine/policy_restarts"] >= 1


@pytest.mark.slow
def test_a_replica_that_fails_while_it_is_started_anew_is_started_once_more(cluster):
    engine = policy_engine(cluster)
    config = Path(cluster.config.model.policy.path) / "config.json"
    away, log = config.with_name("away"), Path(engine.logs.replace("*", "0"))
    config.rename(away)
    kill(process_ids(engine)[0])
    deadline = time.monotonic() + 60
    while not log.exists() or "has no config.json" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    away.rename(config)
    assert engine.checksum() and cluster.faults()["engine/policy_restarts"] >= 2


@pytest.mark.slow
@pytest.mark.parametrize("num_restart", [0], indirect=True)
def test_a_replica_of_another_version_is_told_and_dead_ones_are_named(cluster):
    def forget(replica) -> None:
        replica.engine.version = 7

    engine = policy_engine(cluster)
    ray.get(engine.replicas[1].__ray_call__.remote(forget))
    with pytest.raises(EngineError, match=r"expected version 0 and one checksum in all of them, found .*\(7, "):
        engine.checksum()
    for process in process_ids(engine):
        kill(process)
    for _ in range(2):  # when they are found dead, and once they are known to be
        with pytest.raises(EngineError, match=r"all replicas of the policy engine are dead: .*engine_policy_\*\.log"):
            ask(engine, 1)


@pytest.mark.slow
def test_a_replica_that_dies_asleep_leaves_the_memory_to_learners_until_all_wake(cluster):
    engine = policy_engine(cluster)
    learner = cluster.learner("policy", 100, 1.0)
    transfer(learner, engine, 1)
    engine.sleep()
    kill(process_ids(engine)[0])
    assert [bool(process) for process in engine._call_all("process_id")] == [False, True]
    assert cluster.faults()["engine/policy_restarts"] == 1
    with pytest.raises(EngineError, match="restarted while it slept"):
        engine.checksum()
    train(learner, 2)
    engine.wake(cache=False)  # learners still have the memory, and new weights: the other one takes these
    engine.load_weights(2, learner.weights(engine.dtype))
    engine.wake()
    assert engine.checksum() == learner.checksum(engine.dtype)
    [completion] = asyncio.run(engine.generate([3, 4, 5], SamplingParams(max_tokens=2, temperature=1.0)))
    assert completion.token_ids
