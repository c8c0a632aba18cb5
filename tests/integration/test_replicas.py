"""Replicas of an engine, one of which dies: while weights are sent to them, and while they sleep."""

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray
from runs_helpers import spread_config
from transformers import AutoTokenizer

from rlanything.cluster.cluster import Cluster
from rlanything.config import Config
from rlanything.engines.base import EngineError, SamplingParams
from rlanything.runs.folder import RunFolder
from rlanything.types import Sample

pytestmark = pytest.mark.integration


ENGINES = [("transformers", 1), *(pytest.param(("vllm", size), marks=pytest.mark.slow) for size in (1, 2))]


@pytest.fixture(params=ENGINES, ids=lambda p: f"{p[0]}_{p[1]}")
def cluster(world, tmp_path, request, monkeypatch):
    """Two replicas of the policy (of one process each, or of two), two learner ranks (ZeRO 3) on one node."""
    from make_tiny_models import make_model

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    kind, size = request.param
    model, tokenizer = tmp_path / "model", AutoTokenizer.from_pretrained(world.model)
    make_model(tokenizer, hidden=64 * size, layers=2, seed=0).save_pretrained(model)  # an attention head for each
    tokenizer.save_pretrained(model)
    config: Config = spread_config(world.games, model, tmp_path, "run", kind)
    config.engine.policy.tensor_parallel_size = size
    config.experiment.num_node, config.training.policy.zero_stage = 1, 3
    config.cluster.weight_transfer = "broadcast"
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    folder = RunFolder(config)
    Path(folder.logs).mkdir(parents=True)
    cluster = Cluster(config, folder, ["policy"])
    yield cluster
    cluster.close()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def train(learner, version: int) -> None:
    """Move all weights: an update on tokens that nobody sampled."""
    tokens = np.random.default_rng(version).integers(3, 60, 24)
    shown = np.r_[np.zeros(8), np.ones(16)]
    learner.update([Sample(tokens, shown, shown, -3.0 * shown, key=str(i)) for i in range(4)])


def transfer(learner, engine, version: int) -> bool:
    """Whether the weights of an update came by broadcast; they are the learner's in any case."""
    train(learner, version)
    before = engine.checksum()
    weights = learner.weights(engine.dtype)
    engine.load_weights(version, weights)
    assert before != engine.checksum() == learner.checksum(engine.dtype)
    return weights.stage().sent


def process_ids(engine) -> list[int]:
    return [int(ray.get(replica.process.remote()).rsplit("/", 1)[1]) for replica in engine.replicas]


def kill(process_id: int) -> None:
    """A replica's process; those that vLLM started for it must end too, whose memory the next one needs."""
    workers = psutil.Process(process_id).children(recursive=True)
    os.kill(process_id, signal.SIGKILL)
    _, left = psutil.wait_procs(workers, timeout=20)
    assert not left


def test_weights_arrive_by_broadcast_also_where_a_replica_dies(cluster, monkeypatch):
    engine = cluster.chat_model("policy").engine
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
    first = process_ids(engine)
    assert not transfer(learner, engine, 5)
    assert engine.stats().restarts == 2 and process_ids(engine)[1] != first[1]
    monkeypatch.undo()
    assert transfer(learner, engine, 6)


@pytest.mark.slow
def test_a_replica_that_dies_asleep_leaves_the_memory_to_learners_until_all_wake(cluster):
    engine = cluster.chat_model("policy").engine
    learner = cluster.learner("policy", 100, 1.0)
    transfer(learner, engine, 1)
    engine.sleep()
    kill(process_ids(engine)[0])
    assert engine.stats().restarts == 1
    with pytest.raises(EngineError, match="anew while it slept"):
        engine.checksum()
    engine.wake()
    assert engine.checksum() == learner.checksum(engine.dtype)
    [completion] = asyncio.run(engine.generate([3, 4, 5], SamplingParams(max_tokens=2, temperature=1.0)))
    assert completion.token_ids
