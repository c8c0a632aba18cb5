"""No process of vLLM's is left behind."""

from __future__ import annotations

import multiprocessing
import os

from rlanything.sandbox.kernel import die_with_parent


def end_with_parent() -> None:
    """Have the kernel kill this process, which multiprocessing started, when the thread that started it ends, also
    where it is stopped or waits for a device. vLLM would leave it, with all of the accelerator's memory."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    die_with_parent()
    if os.getppid() != parent.pid:  # it ended before
        os._exit(1)
