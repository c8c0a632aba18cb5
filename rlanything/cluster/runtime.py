"""This run's share of a Ray cluster: its nodes are there, a bundle of each is reserved, actors start in them."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlanything.cluster.placement import Slot
from rlanything.config import Config
from rlanything.runs.folder import RunError

ACTOR_LOST = (ActorDiedError, ActorUnavailableError)
POLL_S = 1.0
# Ray would hide the accelerators of an actor that asks for none by its own count; slots share them out.
KEEP_DEVICES = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
# Ray would run its workers at nice 15, where anything else on a CPU machine starves them: here they do all the work.
NODE_ENV = {"RAY_worker_niceness": "0", "RAY_DEDUP_LOGS": "0", **KEEP_DEVICES}


class Runtime:
    """Connects to the cluster at RAY_ADDRESS, or starts Ray on this machine where that is not set and one is enough."""

    def __init__(self, config: Config) -> None:
        experiment, cluster = config.experiment, config.cluster
        address = os.environ.get("RAY_ADDRESS")
        if experiment.num_node > 1 and not address:
            raise RunError(
                f"experiment.num_node={experiment.num_node}: no Ray cluster is known here; submit "
                "`scripts/launch.sh alfworld_rl.py config=...` to every node, or set RAY_ADDRESS"
            )
        os.environ |= NODE_ENV
        try:
            ray.init(
                address=address or "local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
            )
        except ConnectionError as error:
            raise RunError(f"no Ray head answers at RAY_ADDRESS={address}: {error}; is node 0 up?") from error
        self.num_thread = experiment.num_thread or 1
        bundle = {"CPU": 1.0} | ({"GPU": float(experiment.num_device)} if experiment.num_device else {})
        self._wait_for_nodes(experiment.num_node, bundle, cluster.join_timeout_s)
        self._group = placement_group([bundle] * experiment.num_node, strategy="STRICT_SPREAD")
        if not self._group.wait(cluster.join_timeout_s):
            raise RunError(
                f"Ray could not reserve {bundle} on each of {experiment.num_node} nodes within "
                f"{cluster.join_timeout_s:g} s: another run may hold them; wait for it, or lower experiment.num_device"
            )
        self._actors: list[Any] = []

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
                    f"cluster.join_timeout_s={timeout_s:g} s ({len(alive)} nodes in all); start the others, or lower "
                    "num_node or num_device"
                )
            time.sleep(POLL_S)

    def start(self, actor: type, slot: Slot, *args: Any, env: dict[str, str] | None = None, **options: Any) -> Any:
        """A handle of `actor(*args)` in a process of its own at `slot`; `options` are Ray's."""
        variables = {
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, slot.devices)),
            "OMP_NUM_THREADS": str(self.num_thread),
            **KEEP_DEVICES,
            **(env or {}),
        }
        handle: Any = (
            ray.remote(actor)
            .options(
                num_cpus=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=slot.node
                ),
                runtime_env={"env_vars": variables},
                **options,
            )
            .remote(*args)
        )
        self._actors.append(handle)
        return handle

    def close(self) -> None:
        """End every actor, give the nodes back, leave the cluster."""
        for handle in self._actors:
            ray.kill(handle)
        remove_placement_group(self._group)
        ray.shutdown()


def result(references: list[ray.ObjectRef], who: str) -> list[Any]:
    """What remote calls returned, in order; the first that raises is raised here as it was raised there, at once.

    Raises RunError where a process died.
    """
    pending = list(references)
    while pending:
        done, pending = ray.wait(pending, num_returns=1)
        try:
            ray.get(done)
        except RayTaskError as error:
            raise unwrapped(error) from None
        except ACTOR_LOST as error:
            raise RunError(
                f"{who} died: {cause(error)}; its log is in the run's logs folder; the same command goes on from the "
                "last checkpoint"
            ) from error
    return ray.get(references)


def unwrapped(error: RayTaskError) -> Exception:
    """What a remote call raised, as it was raised there."""
    return error.cause if isinstance(error.cause, Exception) else error


def cause(error: RayActorError) -> str:
    """Why an actor died, in a line: the last one of Ray's many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
