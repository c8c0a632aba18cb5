"""A run's share of a Ray cluster: a placement group with one bundle per node, and the actors that start in it."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rlanything.cluster.calls import result
from rlanything.cluster.nodes import NodeFacts, check_nodes, node_facts
from rlanything.cluster.session import Session
from rlanything.config.schema import Config
from rlanything.errors import RunError
from rlanything.plan.placement import Slot
from rlanything.processes.environment import hidden_accelerators


class Runtime:
    """Connects to the cluster at RAY_ADDRESS, or starts Ray on this machine if that is not set and one node is enough.

    Raises RunError or VersionError if nodes, accelerators, packages or any of `paths` are missing.
    """

    def __init__(self, config: Config, paths: Sequence[Path]) -> None:
        experiment, cluster = config.experiment, config.cluster
        address = os.environ.get("RAY_ADDRESS", "")
        if experiment.num_node > 1 and not address:
            raise RunError(
                f"experiment.num_node={experiment.num_node}, but RAY_ADDRESS names no Ray cluster: submit "
                "`scripts/launch.sh alfworld_rl.py config=...` to every node, or set RAY_ADDRESS"
            )
        self.num_thread = experiment.num_thread or 1
        self._actors: list[Any] = []
        with ExitStack() as started:
            started.callback(Session(address).close)
            started.enter_context(hidden_accelerators())  # in this process only; Ray has counted them by now
            if not address:
                _check_here(experiment.num_device)
            self._group = _reserve(experiment.num_node, experiment.num_device, cluster.join_timeout_s)
            # `max_calls=1` ends the process after its look, so that it holds no memory of an accelerator.
            look = ray.remote(num_cpus=0, num_gpus=experiment.num_device, max_calls=1)(node_facts)
            absolute = [str(path.absolute()) for path in paths]
            bundles = [self._bundle(i) for i in range(experiment.num_node)]
            looks = [look.options(scheduling_strategy=bundle).remote(absolute) for bundle in bundles]
            self.nodes: list[NodeFacts] = result(looks, "a look at a node")
            check_nodes(self.nodes, experiment.num_device)
            self._closing = started.pop_all()

    def start(self, actor: type, slot: Slot, *args: Any, **options: Any) -> Any:
        """Start `actor(*args)` in a process of its own at `slot`; returns its handle. `options` are Ray's."""
        variables = {
            "CUDA_VISIBLE_DEVICES": ",".join(self.nodes[slot.node].devices[device] for device in slot.devices),
            "OMP_NUM_THREADS": str(self.num_thread),
        }
        where, environment = self._bundle(slot.node), {"env_vars": variables}
        return self._start(actor, *args, scheduling_strategy=where, runtime_env=environment, **options)

    def start_here(self, actor: type, name: str) -> Any:
        """Start `actor()`, which others find by its name, on this process's node: it dies with it, as does the run."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        return self._start(actor, scheduling_strategy=here, name=name)

    def _start(self, actor: type, *args: Any, **options: Any) -> Any:
        self._actors.append(ray.remote(num_cpus=0, **options)(actor).remote(*args))
        return self._actors[-1]

    def _bundle(self, node: int) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=node)

    def close(self) -> None:
        """Kill every actor and leave the cluster, which frees the bundles."""
        for handle in self._actors:
            ray.kill(handle)
        self._closing.close()


def _check_here(num_device: int) -> None:
    """Raise RunError if this machine lacks accelerators: no other can join a Ray that this process started."""
    if (num_found := int(ray.cluster_resources().get("GPU", 0))) < num_device:
        raise RunError(
            f"experiment.num_device={num_device}: Ray finds {num_found} accelerators on this machine; look at its "
            "driver (nvidia-smi) and CUDA_VISIBLE_DEVICES, lower num_device, or set 0 for the CPU"
        )


def _reserve(num_node: int, num_device: int, timeout_s: float) -> PlacementGroup:
    """Reserve a CPU and `num_device` accelerators on each of `num_node` nodes, which may still have to join.

    Raises RunError if that takes more than `timeout_s`.
    """
    bundle = {"CPU": 1.0} | ({"GPU": float(num_device)} if num_device else {})
    group = placement_group([bundle] * num_node, strategy="STRICT_SPREAD")
    if ray.wait([group.ready()], timeout=timeout_s)[0]:  # `group.wait` would not let Ctrl-C through
        return group
    nodes = [node for node in ray.nodes() if node["Alive"]]
    fit = [node for node in nodes if all(node["Resources"].get(k, 0) >= v for k, v in bundle.items())]
    if len(fit) >= num_node:
        raise RunError(
            f"Ray could not reserve {bundle} on each of {num_node} nodes within {timeout_s:g} s: another run may hold "
            "them; wait for it, or lower experiment.num_device"
        )
    offers = ", ".join(
        f"{node['NodeManagerAddress']} ({node['Resources'].get('CPU', 0):g} CPUs, "
        f"{node['Resources'].get('GPU', 0):g} GPUs)"
        for node in nodes
    )
    raise RunError(
        f"{len(fit)} of experiment.num_node={num_node} nodes with at least {bundle} joined within "
        f"cluster.join_timeout_s={timeout_s:g} s; found {offers}; start the others, or lower num_node or num_device"
    )
