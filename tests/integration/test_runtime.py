"""This run's share of a Ray cluster: accelerators have names, which need not begin at 0; processes may hang."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
import ray
from launches import LOOPBACK

from rlanything.cluster.calls import result
from rlanything.cluster.runtime import Runtime
from rlanything.cluster.session import wait_for_head
from rlanything.config.schema import Config
from rlanything.errors import RunError
from rlanything.launch.membership import JOB_NODES
from rlanything.plan.placement import Slot
from rlanything.run import check_job

pytestmark = pytest.mark.integration
EVERY_CORE = True


@pytest.fixture
def four_devices(accelerators):
    accelerators("4,5,6,7")


@pytest.mark.slow
def test_accelerators_that_ray_counts_and_torch_does_not_find_are_named(four_devices):
    config = Config()
    config.experiment.num_device = 2
    with pytest.raises(RunError, match=r"node 0 .*: torch finds 0 accelerators, experiment.num_device=2; .*nvidia-smi"):
        Runtime(config, [])
    assert not ray.is_initialized() and os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,6,7", "a second run would find none"


@pytest.mark.slow
def test_processes_see_the_accelerators_that_ray_reserved_for_the_run_and_one_that_hangs_is_told(
    four_devices, monkeypatch
):
    monkeypatch.setattr("rlanything.cluster.runtime.check_nodes", lambda *_: None)

    class Process:
        def sees(self) -> str:
            return os.environ["CUDA_VISIBLE_DEVICES"]

        def hang(self, hangs: bool) -> None:
            time.sleep(600 * hangs)

    config = Config()
    config.experiment.num_device = 2
    runtime = Runtime(config, [])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "", "the driver must take no memory of an accelerator"
    try:
        processes = [runtime.start(Process, Slot(0, devices)) for devices in ((0,), (1,), (0, 1), ())]
        first, second, both, none = ray.get([process.sees.remote() for process in processes])
        with pytest.raises(RunError, match=r"a rank hangs: others answered more than cluster.this=1 s ago"):
            result([p.hang.remote(p is processes[2]) for p in processes], "a rank", "cluster.this", 1.0)
    finally:
        runtime.close()
    assert {first, second} <= {"4", "5", "6", "7"} and first != second
    assert (both, none) == (f"{first},{second}", "")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,6,7", "a second run of this process would find none"


def test_a_ray_of_ones_own_listens_on_the_loopback_alone_leaves_no_token_and_tells_of_small_shared_memory(tmp_path):
    code = (
        "import shutil\n"
        "from launches import listening\n"
        "found = shutil.disk_usage('/dev/shm')._replace(free=64 << 20)\n"  # as Docker makes it
        "shutil.disk_usage = lambda path: found\n"
        "from rlanything.cluster.session import Session\n"
        "session = Session('')\n"
        "print(*listening())\n"
        "session.close()\n"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True, timeout=120
    )
    assert done.stdout.split() and set(done.stdout.split()) <= LOOPBACK, done.stdout
    assert not list(tmp_path.rglob("auth_token"))
    assert "/dev/shm has 0.1 GiB free, and Ray's object store wants" in done.stderr and "--shm-size" in done.stderr


def test_a_session_that_has_ended_adopts_nobody_and_leaves_no_zombie():
    """An engine's process outlives its replica for a moment. If nobody waits for it, it stays as a zombie."""
    code = (
        "import os, psutil, subprocess, sys\n"
        "from rlanything.cluster.session import Session\n"
        "session = Session('')\n"
        "def parent_of_an_orphan():\n"
        "    orphan = subprocess.check_output(['sh', '-c', 'sleep 60 >/dev/null & echo $!'])\n"
        "    process = psutil.Process(int(orphan))\n"
        "    parent = process.ppid()\n"
        "    process.kill()\n"
        "    return parent == os.getpid()\n"
        "during = parent_of_an_orphan()\n"
        'engine = \'import ctypes, os; ctypes.CDLL(None).prctl(15, b"VLLM::EngineCore"); os.write(1, b"x")\'\n'
        "command = ['sh', '-c', f'{sys.executable} -c \\'{engine}\\' &']\n"
        "subprocess.run(command, stdout=subprocess.PIPE, check=True)\n"
        "session.close()\n"
        "left = [p.name() for p in psutil.Process().children() if p.name() != 'sleep']\n"
        "print(during, parent_of_an_orphan(), left)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["True", "False", "[]"]


def test_a_job_of_other_nodes_than_the_run_would_use_is_refused(monkeypatch):
    monkeypatch.setenv(JOB_NODES, "4")
    with pytest.raises(RunError, match="experiment.num_node=1, but the job has 4 nodes"):
        check_job(Config())


def test_a_machine_that_lacks_an_accelerator_is_told_at_once(monkeypatch):
    """Nobody could join a Ray that this process started."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    config = Config()
    config.experiment.num_device = 1000
    try:
        with pytest.raises(
            RunError, match="experiment.num_device=1000: Ray finds 0 accelerators on this machine; .* lower num_device"
        ):
            Runtime(config, [])
    finally:
        ray.shutdown()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_a_port_that_another_program_has_is_no_ray_head():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(RunError, match=f"RAY_ADDRESS=127.0.0.1:{port}: what listens there is no Ray head"):
            wait_for_head(f"127.0.0.1:{port}", limit_s=3)
