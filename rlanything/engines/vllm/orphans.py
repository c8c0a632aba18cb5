"""No process of vLLM's is left behind."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent() -> None:
    """Have the kernel kill this process, which multiprocessing started, when the thread that started it ends, also
    where it is stopped or waits for a device. vLLM would leave it, with all of the accelerator's memory."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent.pid:  # it ended before
        os._exit(1)
