"""A node that lacks packages, paths or accelerators is named before anything large starts on it."""

import os
from dataclasses import replace

import pytest

from rlanything.cluster.nodes import NodeFacts, check_nodes, node_facts, with_dtypes
from rlanything.config.schema import Config
from rlanything.errors import RunError
from rlanything.plan.plan import make_plan
from rlanything.processes.versions import TESTED, VersionError
from rlanything.run import use_devices
from rlanything.weights.precision import multiplies_bfloat16

GOOD = NodeFacts(host="a", versions=dict(TESTED), missing=[], num_device=8)


def test_nodes_that_have_everything_pass():
    check_nodes([GOOD, GOOD], 8)


def test_other_packages_on_a_node_are_named():
    with pytest.raises(VersionError, match=r"node 1 \(b\): ray 2.59.0 \(expected 2.60.0\)"):
        check_nodes([GOOD, replace(GOOD, host="b", versions=TESTED | {"ray": "2.59.0"})], 8)


def test_a_path_that_a_node_does_not_see_is_named():
    with pytest.raises(RunError, match=r"node 1 \(b\) does not see /runs/x: .*all nodes share"):
        check_nodes([GOOD, replace(GOOD, host="b", missing=["/runs/x"])], 8)


def test_a_missing_accelerator_is_named():
    with pytest.raises(RunError, match=r"node 1 \(b\): torch finds 7 accelerators, experiment.num_device=8"):
        check_nodes([GOOD, replace(GOOD, host="b", num_device=7)], 8)


def test_the_facts_of_this_machine_name_missing_paths_and_sorted_devices(tmp_path, monkeypatch):
    monkeypatch.setattr("ray.get_gpu_ids", lambda: [10, 4])
    facts = node_facts([str(tmp_path), str(tmp_path / "gone")])
    assert facts.missing == [str(tmp_path / "gone")] and facts.versions["ray"] == TESTED["ray"]
    assert facts.devices == ("4", "10") and facts.bfloat16[0] is multiplies_bfloat16(on_accelerator=False)


def test_auto_means_the_same_dtype_on_nodes_of_different_kinds():
    config = Config()
    config.engine.rewriter.dtype, config.engine.reward.kind = "float32", "transformers"
    nodes = [replace(GOOD, bfloat16=(True, True)), replace(GOOD, bfloat16=(False, True))]

    def dtypes(num_device: int, nodes: list[NodeFacts]) -> list[str]:
        config.experiment.num_device = num_device
        resolved = with_dtypes(config, nodes)
        engine = resolved.engine
        parts = engine.policy, engine.reward, engine.rewriter, resolved.training.policy
        return [{"bfloat16": "b", "float32": "f"}[part.dtype] for part in parts]

    assert dtypes(0, nodes[:1]) == ["b", "b", "f", "b"] and dtypes(0, nodes) == ["f", "f", "f", "f"]
    assert dtypes(8, nodes) == ["b", "f", "f", "b"]  # the small engine computes on the CPU


def test_accelerators_of_a_cluster_stay_visible_until_ray_has_counted_them(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    config = Config()
    config.experiment.num_device, config.engine.policy.kind = 2, "transformers"
    with use_devices(make_plan(config, learns=False)):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    config.experiment.num_device = 0
    with use_devices(make_plan(config, learns=False)):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1", "a second run of this process would find none"
