"""Engines and learners that take turns with a device's memory, here a CPU's, as they do with an accelerator's."""

import signal

import pytest
from replay import assert_trained_as_one_process
from runs_helpers import small_config, spread_config

from rlanything.cluster.engines import ReplicatedEngine
from rlanything.config.checks import check
from rlanything.plan.placement import Placement
from rlanything.runs.metrics import read_jsonl
from rlanything.train import train

pytestmark = pytest.mark.integration
EVERY_CORE = True
START = ["sleep", "wake weights", "policy stored", "reward stored", "wake all"]  # nobody knows yet what will come
STEP = ["sleep", "wake weights", "policy", "reward", "wake all"]
SAVE = ["sleep", "wake all"]


@pytest.fixture
def what_happens(monkeypatch) -> list[str]:
    """To the policy's engines, and which weights were sent, in order."""
    happened = []

    def note(cls, name, what) -> None:
        original = getattr(cls, name)

        def noted(self, *args, **kwargs):
            result = original(self, *args, **kwargs)
            happened.extend(what(self, *args, **kwargs))
            return result

        monkeypatch.setattr(cls, name, noted)

    awake = {True: "wake all", False: "wake weights"}
    note(ReplicatedEngine, "sleep", lambda e: ["sleep"] * (e.role == "policy"))
    note(ReplicatedEngine, "wake", lambda e, cache=True: [awake[cache]] * (e.role == "policy"))
    note(
        ReplicatedEngine, "load_weights", lambda e, _, weights: [e.role if weights.stage().sent else f"{e.role} stored"]
    )
    return happened


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_engines_that_share_devices_take_weights_before_their_caches_and_train_as_one_process(
    world, tmp_path, monkeypatch, engine, what_happens
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(Placement, "shares_devices", True)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    config = spread_config(world.games, world.model, tmp_path, "run", engine)
    config.experiment.num_node, config.cluster.weight_transfer = 1, "ipc"
    config.engine.policy.num_replica, config.cluster.num_env_host = 1, 1  # each process takes seconds to start
    try:
        train(config)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert what_happens == [*START, *STEP, *SAVE, *STEP, *SAVE]
    assert_learned(config, tmp_path / "run")


@pytest.mark.slow
def test_one_accelerator_serves_all_roles_and_then_trains_them(
    world, tmp_path, monkeypatch, accelerators, what_happens
):
    accelerators("3")
    monkeypatch.setattr("rlanything.cluster.runtime.check_nodes", lambda *_: None)
    config = small_config(world.games, world.model, tmp_path, "run")
    config.experiment.num_device, config.experiment.total_step, config.cluster.weight_transfer = 1, 2, "ipc"
    config.training.policy.zero_stage, config.training.reward.zero_stage = 1, 2
    check(config)
    train(config)
    assert what_happens == [*START, *STEP, *SAVE, *STEP, *SAVE]
    assert_learned(config, tmp_path / "run")


def assert_learned(config, run) -> None:
    records = [r for r in read_jsonl(run / "metrics.jsonl") if r["phase"] == "train"]
    assert all(r["policy/logprob_abs_diff"] < 1e-3 and r["reward/logprob_abs_diff"] < 1e-3 for r in records)
    assert_trained_as_one_process(config, run)
