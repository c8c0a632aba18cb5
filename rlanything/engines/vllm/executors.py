"""vLLM's executors, in the process that AsyncLLM starts for its scheduler and model: it ends with the one it serves."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal

from vllm.v1.executor import Executor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from rlanything.engines.vllm import LOG_FORMAT, LOGGER

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def _prepare_process() -> None:
    """Where the parent is killed, vLLM itself would leave this process, with all of the accelerator's memory."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it died before
        os._exit(1)
    to_stderr = logging.StreamHandler()  # which is the engine's log
    to_stderr.setFormatter(LOG_FORMAT)
    LOGGER.addHandler(to_stderr)


class OneWorker(UniProcExecutor):
    """The worker is in this process."""

    def _init_executor(self) -> None:
        _prepare_process()
        super()._init_executor()


class SeveralWorkers(MultiprocExecutor):
    """Each worker has a process of its own, which ends with this one."""

    def _init_executor(self) -> None:
        _prepare_process()
        super()._init_executor()


def executor(num_worker: int) -> type[Executor]:
    """Of an engine with so many workers."""
    return OneWorker if num_worker == 1 else SeveralWorkers
