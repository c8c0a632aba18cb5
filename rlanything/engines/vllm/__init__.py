"""The vLLM engine, on a CPU as on GPUs, for texts and images.

`in_process` steps vLLM's LLMEngine from the asyncio loop of a run that is one process. `asynchronous` is vLLM's
AsyncLLM, for replicas. Importing this package prepares a process for vLLM; vLLM's own processes import it too.
"""

import logging
import multiprocessing
import os
import threading

os.environ |= {  # vLLM reads them on import
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # LLMEngine starts no process: it is up in seconds and deterministic
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # learners share the threads
    "VLLM_CONFIGURE_LOGGING": "0",  # an engine writes its own log file
    "VLLM_NO_USAGE_STATS": "1",
}

LOGGER = logging.getLogger("vllm")
LOG_FORMAT = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
# A process that vLLM started logs to stderr, which its engine has directed to the engine's log file. Its name tells it:
# a spawned process does not know its parent yet when it imports this.
_started_by_vllm = multiprocessing.current_process().name != "MainProcess"
_handler = logging.StreamHandler() if _started_by_vllm else logging.NullHandler()
_handler.setFormatter(LOG_FORMAT)
LOGGER.addHandler(_handler)
LOGGER.setLevel(logging.INFO)
LOGGER.propagate = False

from tqdm import tqdm  # noqa: E402
from vllm.distributed.device_communicators import shm_broadcast  # noqa: E402
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402

from rlanything.processes import shared_memory  # noqa: E402

if current_platform.is_cpu():
    # Else Inductor spends 18 s in a C++ compiler on a logprob's rank. Set before vLLM's sampler is imported.
    current_platform.simple_compile_backend = "eager"
else:
    # An accelerator's context does not survive a fork, and vLLM notices it only if no engine has run in this process.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"

# A name in /dev/shm would outlive a process that is killed. Set before vLLM's workers make any.
shm_broadcast.shared_memory = shared_memory
# vLLM's own all-reduce on CPUs with AVX-512 makes such names too, in C++. Without it vLLM uses gloo, which makes none.
CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False  # type: ignore[method-assign]
tqdm.set_lock(threading.RLock())  # its default lock is a named semaphore in /dev/shm
