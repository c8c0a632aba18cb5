"""vLLM's executors, in the process that AsyncLLM starts for its scheduler and model: it ends with the one it serves."""

from __future__ import annotations

from vllm.v1.executor import Executor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from rlanything.processes.orphans import end_with_multiprocessing_parent


class OneWorker(UniProcExecutor):
    """The worker is in this process."""

    def _init_executor(self) -> None:
        end_with_multiprocessing_parent()
        super()._init_executor()


class SeveralWorkers(MultiprocExecutor):
    """Each worker has a process of its own."""

    def _init_executor(self) -> None:
        end_with_multiprocessing_parent()
        super()._init_executor()


def executor(num_worker: int) -> type[Executor]:
    """Of an engine with so many workers."""
    return OneWorker if num_worker == 1 else SeveralWorkers
