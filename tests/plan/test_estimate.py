"""A step's seconds, against sums by hand, and what is advised where accelerators would idle."""

import pytest

from rlanything.config.schema import Config, ModelConfig
from rlanything.plan.estimate import FLOPS, READ_BYTES, SHARE, STEP_S, advice, decode_s, estimate, told
from rlanything.plan.memory import ModelSize
from rlanything.plan.plan import make_plan

TOKENS = {"policy": 2.0e6, "reward": 1.0e6, "rewriter": 1.0e3}


def plan_of(num_device: int, placement: str = "colocated", **replicas: int):
    config = Config()
    config.experiment.num_device, config.cluster.placement = num_device, placement
    for role in ("policy", "reward", "rewriter"):
        config.engine.of(role).kind, config.engine.of(role).num_replica = "vllm", replicas.get(role, 1)
        setattr(config.model, role, ModelConfig(path=f"some/{role}-7B"))
    config.training.policy.zero_stage = config.training.reward.zero_stage = 2
    return make_plan(config, learns=True)


def seconds(plan):
    sizes = {role: ModelSize(7.0e9, "its name") for role in plan.roles}
    return estimate(plan, sizes, TOKENS)


def test_a_replica_reads_its_weights_once_for_all_sequences_of_a_pass():
    one = decode_s(7.0e9, 1, 1000.0, 1.0)
    assert one == pytest.approx(1000 * (STEP_S + 14e9 / READ_BYTES + 14e9 / (FLOPS * SHARE)))
    assert decode_s(7.0e9, 1, 1000.0, 100.0) < one / 50 and decode_s(7.0e9, 2, 1000.0, 1.0) < one


def test_engines_work_beside_each_other_and_learners_one_after_the_other():
    found = seconds(plan_of(8, policy=4, reward=2))
    assert found.rollout_s == max(found.engines["policy"], found.engines["reward"])
    assert found.engines["policy"] == pytest.approx(decode_s(7.0e9, 1, 0.5e6, 40))  # 20 x 8 episodes, 4 replicas
    assert found.updates["policy"] == pytest.approx((6 + 2 + 2) * 7.0e9 * 2.0e6 / (8 * FLOPS * SHARE))
    assert found.total_s == pytest.approx(
        found.rollout_s + found.engines["rewriter"] + found.updates["policy"] + found.updates["reward"]
    )
    assert f"{found.total_s:.0f} s a step" in told(found)


def test_one_accelerator_serves_playing_and_judging_by_turns():
    plan = plan_of(8)
    plan.config.experiment.num_device = 1
    found = seconds(plan)
    assert found.shared and found.rollout_s == found.engines["policy"] + found.engines["reward"]


def test_accelerators_that_would_idle_are_told_with_the_keys_to_change():
    plan = plan_of(8, rewriter=4)
    [line] = advice(plan, seconds(plan))
    assert "the 4 accelerators of the rewriter engine" in line and "lower engine.rewriter.num_replica" in line
    assert not list(advice(plan_of(8), seconds(plan_of(8))))
    split = plan_of(8, placement="split")
    [line] = advice(split, seconds(split))
    assert "rollout.max_staleness=1" in line
    in_turn = seconds(split).total_s
    split.config.rollout.max_staleness = 1
    assert not list(advice(split, seconds(split))) and seconds(split).total_s < in_turn


def test_fewer_episodes_at_once_are_smaller_batches():
    plan = plan_of(8)
    many = seconds(plan).engines["policy"]
    plan.config.rollout.max_concurrent = 16
    assert seconds(plan).engines["policy"] > 4 * many
