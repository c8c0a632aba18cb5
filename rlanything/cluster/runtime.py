"""This run's share of a Ray cluster: its nodes are there, a bundle of each is reserved, actors start in them."""

from __future__ import annotations

import atexit
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayTaskError
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rlanything.cluster.nodes import NodeFacts, check_nodes, node_facts
from rlanything.cluster.placement import Slot
from rlanything.config import Config
from rlanything.engines.base import EngineError
from rlanything.interrupts import raise_unheard
from rlanything.runs.folder import RunError
from rlanything.sandbox.kernel import adopt_orphans

ACTOR_LOST = (ActorDiedError, ActorUnavailableError)
POLL_S = 1.0
HEAD_S = 60.0  # for the head to answer: it may have been started a moment ago
END_S = 5.0  # for processes that are killed to be gone
WAIT_S = 2.0  # before an actor that restarts is called again
# Ray would hide the accelerators of an actor that asks for none by its own count; slots share them out.
KEEP_DEVICES = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
# Ray would run its workers at nice 15, where anything else on a CPU machine starves them: here they do all the work.
NODE_ENV = {"RAY_worker_niceness": "0", "RAY_DEDUP_LOGS": "0", **KEEP_DEVICES}


class Runtime:
    """Connects to the cluster at RAY_ADDRESS, or starts Ray on this machine where that is not set and one is enough.

    Processes on all nodes work in this one's folder, so that relative paths mean the same to all. Raises RunError or
    VersionError where nodes, accelerators, packages or any of `paths` are missing.
    """

    def __init__(self, config: Config, paths: Sequence[Path]) -> None:
        experiment, cluster = config.experiment, config.cluster
        address = os.environ.get("RAY_ADDRESS")
        if experiment.num_node > 1 and not address:
            raise RunError(
                f"experiment.num_node={experiment.num_node}: no Ray cluster is known here; submit "
                "`scripts/launch.sh alfworld_rl.py config=...` to every node, or set RAY_ADDRESS"
            )
        if address and re.fullmatch(r".+:\d+", address):
            wait_for_head(address)
        os.environ |= NODE_ENV
        self._others: set[psutil.Process] | None = None  # of another Ray, where this process starts one
        if not address:
            adopt_orphans()  # they end below
            self._others = _ray_processes()
            atexit.register(self._end_own_ray)
        _init_ray(
            address=address or "local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"worker_process_setup_hook": _work_in(str(Path.cwd()))},
        )
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # this process's alone, and now: Ray has counted the accelerators
        self.num_thread = experiment.num_thread or 1
        bundle = {"CPU": 1.0} | ({"GPU": float(experiment.num_device)} if experiment.num_device else {})
        self._wait_for_nodes(experiment.num_node, bundle, cluster.join_timeout_s if address else 0.0)
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
        """End every actor and leave the cluster, which gets its nodes back with that. Waits for nothing of Ray's: a
        signal to the whole group ended its processes too."""
        for handle in self._actors:
            ray.kill(handle)
        ray.shutdown()
        self._end_own_ray()

    def _end_own_ray(self) -> None:
        """Kill what is left of it: where a signal to the whole group ended some of its processes while it started,
        others would wait for them."""
        atexit.unregister(self._end_own_ray)
        if self._others is None:
            return
        deadline = time.monotonic() + END_S
        while (left := _ray_processes() - self._others) and time.monotonic() < deadline:  # one may just start another
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, POLL_S)


def _ray_processes() -> set[psutil.Process]:
    """Those below this one."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if line.startswith("ray::") or "/ray/" in line:
                found.add(process)
    return found


def _init_ray(**options: Any) -> None:
    """`ray.init`. Ray answers to SIGTERM by a SystemExit wherever this process stands, from the start of that on: what
    the program does comes in its place."""
    ours = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init(**options)
        finally:
            signal.signal(signal.SIGTERM, ours)  # asks Ray's handler once more, where a signal has just come
    except Exception:  # Ray raises bare ones where its processes do not come up, and a signal may have ended them
        raise_unheard()
        raise
    except SystemExit as end:
        if end.code != signal.SIGTERM:
            raise
        signal.signal(signal.SIGTERM, ours)
        signal.raise_signal(signal.SIGTERM)
        raise KeyboardInterrupt from end  # ours did not: Ray may leave its own handler of SIGINT behind


def wait_for_head(address: str, limit_s: float = HEAD_S) -> None:
    """Ray itself would try for many minutes, in silence. Raises RunError."""
    host, port = address.rsplit(":", 1)
    deadline = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=limit_s).close()
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise RunError(
                    f"no Ray head answers at RAY_ADDRESS={address} after {limit_s:g} s ({error}); is node 0 up, and "
                    "the port open?"
                ) from error
            time.sleep(POLL_S)
    asked = [sys.executable, "-m", "ray.scripts.scripts", "status", f"--address={address}"]
    while True:
        try:
            subprocess.run(asked, timeout=limit_s, check=True, capture_output=True, text=True)
            return
        except subprocess.TimeoutExpired:
            why = "it does not answer as one"
        except subprocess.CalledProcessError as error:  # a head says so for a moment while it starts
            why = (error.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        if time.monotonic() > deadline:
            raise RunError(
                f"what listens at RAY_ADDRESS={address} is no Ray head of this version ({why}): another program has "
                "the port, or the nodes differ in what is installed or in RAY_AUTH_TOKEN"
            )
        time.sleep(POLL_S)


def _work_in(folder: str) -> Callable[[], None]:
    def work_in() -> None:
        with suppress(OSError):  # `check_nodes` says which path a node does not see
            os.chdir(folder)

    return work_in


def _told(nodes: list[dict[str, Any]]) -> str:
    """Each node's address with what it offers."""
    return ", ".join(
        f"{n['NodeManagerAddress']} ({n['Resources'].get('CPU', 0):g} CPUs, {n['Resources'].get('GPU', 0):g} GPUs)"
        for n in nodes
    )


class Limit(NamedTuple):
    """How long, and which configuration key says so."""

    key: str
    seconds: float


def result(references: list[ray.ObjectRef], who: str, limit: Limit | None = None) -> list[Any]:
    """What remote calls returned, in order; the first that raises is raised here as it was raised there, while others
    are still under way, but for one that raised because another process died.

    Raises RunError where a process died, or takes longer than `limit` after another has answered.
    """
    pending = list(references)
    try:
        while pending:
            late = limit if len(pending) < len(references) else None
            done, pending = ray.wait(pending, num_returns=1, timeout=late.seconds if late else None)
            if late and not done:
                raise RunError(
                    f"{who} hangs: others answered more than {late.key}={late.seconds:g} s ago; its log is in the "
                    "run's logs folder; the same command goes on from the last checkpoint"
                )
            ray.get(done)
    except RayTaskError as error:
        if (lost := _lost(pending)) is None:
            raise unwrapped(error) from None
        raise _died(who, lost) from lost
    except ACTOR_LOST as error:
        raise _died(who, error) from error
    return ray.get(references)


def _lost(references: list[ray.ObjectRef]) -> RayActorError | None:
    """Why a process of these calls died, if one did in the last moment."""
    done, _ = ray.wait(references, num_returns=len(references), timeout=WAIT_S) if references else ([], [])
    for reference in done:
        try:
            ray.get(reference)
        except ACTOR_LOST as error:
            return error
        except RayTaskError:  # another of those that the first one's end broke
            continue
    return None


def _died(who: str, error: RayActorError) -> RunError:
    return RunError(
        f"{who} died: {cause(error)}; its log is in the run's logs folder; the same command goes on from the last "
        "checkpoint"
    )


class Patience:
    """With an actor that does not answer, since Ray may be starting it anew: `limit_s` since it last did."""

    def __init__(self, limit_s: float, who: str) -> None:
        self.limit_s, self.who = limit_s, who
        self._until: float | None = None

    def pause_s(self) -> float:
        """How long to wait before it is called again. Raises EngineError when it should have been back."""
        now = time.monotonic()
        self._until = self._until or now + self.limit_s
        if now > self._until:
            raise EngineError(
                f"{self.who} died and was not back within cluster.restart_timeout_s={self.limit_s:g} s: its node may "
                "be gone, which takes another one; the same command goes on from the last checkpoint"
            )
        return WAIT_S

    def answered(self) -> None:
        """It is there."""
        self._until = None


def unwrapped(error: RayTaskError) -> Exception:
    """What a remote call raised, as it was raised there."""
    return error.cause if isinstance(error.cause, Exception) else error


def cause(error: RayActorError) -> str:
    """Why an actor died, in a line: the last one of Ray's many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
