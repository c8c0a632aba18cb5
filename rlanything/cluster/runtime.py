"""This run's share of a Ray cluster: its nodes are there, a bundle of each is reserved, actors start in them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rlanything.cluster.calls import result
from rlanything.cluster.nodes import NodeFacts, check_nodes, node_facts
from rlanything.cluster.session import KEEP_DEVICES, Session
from rlanything.config.schema import Config
from rlanything.errors import RunError
from rlanything.plan.placement import Slot

POLL_S = 1.0


class Runtime:
    """Connects to the cluster at RAY_ADDRESS, or starts Ray on this machine where that is not set and one is enough.

    Processes on all nodes work in this one's folder, so that relative paths mean the same to all. Raises RunError or
    VersionError where nodes, accelerators, packages or any of `paths` are missing.
    """

    def __init__(self, config: Config, paths: Sequence[Path]) -> None:
        experiment, cluster = config.experiment, config.cluster
        address = os.environ.get("RAY_ADDRESS", "")
        if experiment.num_node > 1 and not address:
            raise RunError(
                f"experiment.num_node={experiment.num_node}: no Ray cluster is known here; submit "
                "`scripts/launch.sh alfworld_rl.py config=...` to every node, or set RAY_ADDRESS"
            )
        self._session = Session(address)
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # this process's alone, and now: Ray has counted the accelerators
        self.num_thread = experiment.num_thread or 1
        bundle = {"CPU": 1.0} | ({"GPU": float(experiment.num_device)} if experiment.num_device else {})
        if address:
            self._wait_for_nodes(experiment.num_node, bundle, cluster.join_timeout_s)
        else:
            _check_here(experiment.num_device)
        self._group = placement_group([bundle] * experiment.num_node, strategy="STRICT_SPREAD")
        if not self._group.wait(cluster.join_timeout_s):
            raise RunError(
                f"Ray could not reserve {bundle} on each of {experiment.num_node} nodes within "
                f"{cluster.join_timeout_s:g} s: another run may hold them; wait for it, or lower experiment.num_device"
            )
        self._actors: list[Any] = []
        looks = [
            # Its process ends with it, and with that what it holds of an accelerator.
            ray.remote(num_cpus=0, num_gpus=experiment.num_device, max_calls=1, scheduling_strategy=self._bundle(i))(
                node_facts
            ).remote([str(path.absolute()) for path in paths])
            for i in range(experiment.num_node)
        ]
        self.nodes: list[NodeFacts] = result(looks, "a look at a node")
        check_nodes(self.nodes, experiment.num_device)

    def _wait_for_nodes(self, num_node: int, bundle: dict[str, float], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            alive = [n for n in ray.nodes() if n["Alive"]]
            fit = [n for n in alive if all(n["Resources"].get(k, 0) >= v for k, v in bundle.items())]
            if len(fit) >= num_node:
                return
            if time.monotonic() > deadline:
                raise RunError(
                    f"{len(fit)} of experiment.num_node={num_node} nodes with at least {bundle} joined within "
                    f"cluster.join_timeout_s={timeout_s:g} s; there are {_told(alive)}; start the others, or lower "
                    "num_node or num_device"
                )
            time.sleep(POLL_S)

    def start(self, actor: type, slot: Slot, *args: Any, **options: Any) -> Any:
        """A handle of `actor(*args)` in a process of its own at `slot`; `options` are Ray's."""
        handle: Any = ray.remote(**self._options(slot), **options)(actor).remote(*args)
        self._actors.append(handle)
        return handle

    def start_here(self, actor: type, name: str) -> Any:
        """A handle of `actor()` on this process's node, with which the run ends anyway; others find it by its name."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options: dict[str, Any] = {"num_cpus": 0, "scheduling_strategy": here, "name": name}
        handle: Any = ray.remote(**options)(actor).remote()
        self._actors.append(handle)
        return handle

    def _options(self, slot: Slot) -> dict[str, Any]:
        """Ray's options for a process at `slot`."""
        variables = {
            "CUDA_VISIBLE_DEVICES": ",".join(self.nodes[slot.node].devices[device] for device in slot.devices),
            "OMP_NUM_THREADS": str(self.num_thread),
            **KEEP_DEVICES,
        }
        env = {"env_vars": variables}
        return {"num_cpus": 0, "scheduling_strategy": self._bundle(slot.node), "runtime_env": env}

    def _bundle(self, node: int) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=node)

    def close(self) -> None:
        """End every actor and leave the cluster, which gets its nodes back with that."""
        for handle in self._actors:
            ray.kill(handle)
        self._session.close()


def _check_here(num_device: int) -> None:
    """Raise RunError where the only machine lacks accelerators."""
    if (found := int(ray.cluster_resources().get("GPU", 0))) < num_device:
        raise RunError(
            f"experiment.num_device={num_device}: Ray finds {found} accelerators on this machine; look at its driver "
            "(nvidia-smi) and CUDA_VISIBLE_DEVICES, lower num_device, or set 0 for the CPU"
        )


def _told(nodes: list[dict[str, Any]]) -> str:
    """Each node's address with what it offers."""
    return ", ".join(
        f"{n['NodeManagerAddress']} ({n['Resources'].get('CPU', 0):g} CPUs, {n['Resources'].get('GPU', 0):g} GPUs)"
        for n in nodes
    )
