"""Which process runs where: nothing shared that must not be, and every refusal names the number."""

import pytest

from rlanything.config.roles import needs_cluster
from rlanything.config.schema import Config
from rlanything.errors import ConfigError
from rlanything.plan.placement import Route, Slot, place, route, where

ROLES = ("policy", "reward", "rewriter")


def config(nodes: int, devices: int, replicas: tuple[int, int, int] = (1, 1, 1), **cluster: object) -> Config:
    made = Config()
    made.experiment.num_node, made.experiment.num_device = nodes, devices
    for role, num in zip(ROLES, replicas, strict=True):
        made.engine.of(role).num_replica = num
    for key, value in cluster.items():
        setattr(made.cluster, key, value)
    return made


def test_one_process_is_enough_for_a_cpu_alone():
    assert not needs_cluster(config(1, 0))
    assert needs_cluster(config(2, 0)) and needs_cluster(config(1, 1)) and needs_cluster(config(1, 0, (2, 1, 1)))
    assert needs_cluster(config(1, 0, num_learner=2))


@pytest.mark.parametrize(
    ("placement", "devices", "shares"), [("colocated", 4, True), ("split", 4, False), ("colocated", 0, False)]
)
def test_engines_and_learners_share_accelerators_where_they_are_colocated(placement, devices, shares):
    made = config(1, devices, placement=placement)
    assert place(made, ROLES).shares_devices == shares
    assert not place(made, ROLES, learns=False).shares_devices


def test_colocated_engines_share_no_accelerator_and_learners_have_all():
    made = config(2, 4, (4, 1, 1))
    made.engine.reward.tensor_parallel_size = 2
    placement = place(made, ROLES)
    assert placement.engines["policy"] == [Slot(0, (i,)) for i in range(4)]
    assert placement.engines["reward"] == [Slot(1, (0, 1))]
    assert placement.engines["rewriter"] == [Slot(1, (2,))]
    assert placement.learners == [Slot(n, (d,)) for n in range(2) for d in range(4)]
    assert placement.hosts == [Slot(0), Slot(1)]


def test_one_accelerator_is_shared_by_engines_and_then_by_learners():
    made = config(1, 1)
    placement = place(made, ROLES)
    assert placement.shares_devices and [placement.engines[role] for role in ROLES] == [[Slot(0, (0,))]] * 3
    assert route(made, placement, "policy") == Route("ipc", (0,))


def test_where_processes_are_is_told_by_nodes_and_ranges():
    made = config(3, 4, (7, 1, 1))
    placement = place(made, ROLES)
    assert where(placement.engines["policy"], 4) == "node 0, node 1 (0-2)"
    assert where(placement.engines["reward"] + [Slot(1, (1,)), Slot(1, (0,))], 4) == "node 1 (0-1 3)"
    assert where(placement.learners, 4) == "node 0-2" and where(placement.hosts, 0) == "node 0-2"


def test_a_tensor_parallel_engine_never_spans_two_nodes():
    made = config(2, 4, (3, 1, 1))
    made.engine.reward.tensor_parallel_size = 4
    placement = place(made, ("policy", "reward"))
    assert placement.engines["reward"] == [Slot(1, (0, 1, 2, 3))], "not accelerators 3 of node 0 to 2 of node 1"


def test_split_learners_have_what_the_engines_left():
    placement = place(config(1, 8, (3, 2, 1), placement="split"), ROLES)
    assert placement.learners == [Slot(0, (6,)), Slot(0, (7,))]


def test_processes_are_dealt_to_the_nodes_of_a_cluster_without_accelerators():
    placement = place(config(3, 0, (2, 1, 1), num_learner=2, num_env_host=2), ROLES)
    nodes = [slot.node for role in ROLES for slot in placement.engines[role]]
    assert nodes == [0, 1, 2, 0] and [s.node for s in placement.learners] == [0, 1]
    assert [s.node for s in placement.hosts] == [0, 1] and all(not s.devices for s in placement.learners)


def test_an_evaluation_has_no_learners():
    assert place(config(3, 0), ("policy",), learns=False).learners == []
    assert place(config(1, 2, (2, 1, 1)), ("policy",), learns=False).learners == []


def test_each_worker_has_the_learner_rank_on_its_accelerator_to_take_weights_from():
    made = config(2, 4, (3, 1, 1))
    made.engine.reward.tensor_parallel_size = 2
    placement = place(made, ROLES)
    assert placement.engines["reward"] == [Slot(1, (0, 1))]
    assert route(made, placement, "policy") == Route("ipc", (0, 1, 2))
    assert route(made, placement, "reward") == Route("ipc", (4, 5))
    made.cluster.num_learner = 4
    placement = place(made, ROLES)
    assert route(made, placement, "policy") == Route("ipc", (0, 1, 2))
    assert route(made, placement, "reward") == Route("store"), "its accelerators have no learner"
    made.training.policy.lora_rank = 8
    assert route(made, placement, "policy") == Route("store")


def test_workers_without_accelerators_share_the_ranks_of_their_node():
    made = config(1, 0, (3, 1, 1), num_learner=2, weight_transfer="ipc")
    made.engine.reward.tensor_parallel_size = 2
    placement = place(made, ROLES)
    assert route(made, placement, "policy") == Route("ipc", (0, 1, 0))
    assert route(made, placement, "reward") == Route("ipc", (0, 1))
    made.cluster.weight_transfer = "auto"
    assert route(made, placement, "policy") == Route("store")
    made = config(3, 0, (2, 1, 1), num_learner=2, weight_transfer="ipc")
    placement = place(made, ROLES)
    with pytest.raises(ConfigError, match="weight_transfer=ipc: a worker of the reward engine has no learner rank"):
        route(made, placement, "reward")


def test_engines_with_accelerators_of_their_own_are_sent_a_broadcast():
    made = config(1, 8, (3, 2, 1), placement="split")
    assert route(made, place(made, ROLES), "policy") == Route("broadcast")
    made.cluster.weight_transfer = "store"
    assert route(made, place(made, ROLES), "policy") == Route("store")
    made.cluster.weight_transfer = "ipc"
    with pytest.raises(ConfigError, match="use placement=colocated with cluster.num_learner=0"):
        route(made, place(made, ROLES), "policy")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (config(1, 4, (4, 1, 1)), "engine.reward.num_replica=1: .* needs 5 accelerators, .* are 4"),
        (config(1, 4, (2, 1, 1), placement="split"), "leaves 0 of 4 accelerators for the learners"),
        (config(1, 4, (1, 1, 1), num_learner=8), "cluster.num_learner=8: placement colocated leaves 4 of 4"),
    ],
)
def test_a_number_that_is_too_large_is_named(made, message):
    with pytest.raises(ConfigError, match=message):
        place(made, ROLES)


def test_tensor_parallelism_must_divide_a_nodes_accelerators():
    made = config(1, 4)
    made.engine.policy.tensor_parallel_size = 3
    with pytest.raises(ConfigError, match="engine.policy.tensor_parallel_size=3: does not divide"):
        place(made, ROLES)
