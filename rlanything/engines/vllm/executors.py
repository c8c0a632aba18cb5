"""vLLM's executors. AsyncLLM starts a process for its scheduler and model; with these it ends with our process."""

from __future__ import annotations

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
