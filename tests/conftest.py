"""A small world, made once a session by the real makers: generated games and a tiny random model with its tokenizer."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

# Ray gives its workers 15: beside the suite's other worker they would hardly run.
os.environ.setdefault("RAY_worker_niceness", "0")
ALL_CORES = os.sched_getaffinity(0)
if "PYTEST_XDIST_WORKER" in os.environ:
    # Each worker has its own cores, and so have all processes of its tests: OpenMP's pools must never share one.
    number, count = int(os.environ["PYTEST_XDIST_WORKER"][2:]), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    cores = sorted(ALL_CORES)
    os.sched_setaffinity(0, cores[number::count] or cores)


@dataclass(frozen=True)
class World:
    """See `make_small_world`."""

    games: Path
    model: Path


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> World:
    """Folders of games and model. The first of xdist's workers that wants them makes them for all."""
    from make_tiny_models import make_small_world

    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "world"
    with FileLock(f"{root}.lock"):
        if not (root / "whole").exists():
            root.mkdir(exist_ok=True)
            make_small_world(root)
            (root / "whole").touch()
    return World(root / "games", root / "model")


@pytest.fixture(scope="module", autouse=True)
def every_core(request):
    """Lets a module with `EVERY_CORE = True` use the cores of other workers too: it starts many processes of one thread
    each. vLLM's would bind their threads to such a core."""
    own = os.sched_getaffinity(0)
    if getattr(request.module, "EVERY_CORE", False):
        os.sched_setaffinity(0, ALL_CORES)
    yield
    os.sched_setaffinity(0, own)


@pytest.fixture(scope="session")
def forked(tmp_path_factory):
    """Runs of entry points in processes of their own, where the start of Python is not what is tested."""
    from forked_runs import ForkedRuns

    with closing(ForkedRuns(tmp_path_factory.mktemp("forked"))) as runs:
        yield runs


@pytest.fixture
def accelerators(monkeypatch):
    """`accelerators("4,5")` starts a node of which a job scheduler granted those; there are none in truth, which nobody
    notices who does not ask torch."""
    import ray
    from ray.cluster_utils import Cluster

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    started = []

    def start(names: str) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
        node = {"num_cpus": 2, "num_gpus": len(names.split(","))}
        started.append(Cluster(initialize_head=True, head_node_args=node))
        monkeypatch.setenv("RAY_ADDRESS", started[0].address)

    yield start
    ray.shutdown()
    for cluster in started:
        cluster.shutdown()
    for number, handler in handlers.items():
        signal.signal(number, handler)
