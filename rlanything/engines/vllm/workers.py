"""What runs in vLLM's own processes: executors that end with our process, and the workers' side of new weights.

vLLM's own backends of its weight-transfer API carry weights only over NCCL or CUDA IPC, and wait without a limit. The
backend here takes them directly from learner ranks (`weights/transfer`: NCCL or CUDA IPC between accelerators, gloo or
shared memory between CPUs), from shared memory of this machine, or as tensors of this process.
Source: docs.vllm.ai, "Weight transfer" and "Layerwise reload".
"""

import multiprocessing
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from rlanything.engines.base import peak_memory_gb
from rlanything.processes.orphans import end_with_multiprocessing_parent
from rlanything.weights.checksum import Digest, checksum
from rlanything.weights.lora import LORA_A, LORA_B, merged
from rlanything.weights.transfer import Expected, Meeting, Receiver
from rlanything.weights.transfer.broadcast import BroadcastMeeting
from rlanything.weights.transfer.ipc import IpcMeeting
from rlanything.weights.transfer.pieces import unpacked

BACKEND = "rlanything"
MEETINGS = {meeting.__name__: meeting for meeting in (BroadcastMeeting, IpcMeeting)}


class OneWorker(UniProcExecutor):
    """AsyncLLM's executor if the worker is in the process that AsyncLLM starts."""

    def _init_executor(self) -> None:
        end_with_multiprocessing_parent()
        super()._init_executor()


class SeveralWorkers(MultiprocExecutor):
    """AsyncLLM's executor if each worker has a process of its own."""

    def _init_executor(self) -> None:
        end_with_multiprocessing_parent()
        super()._init_executor()


@dataclass
class Rendezvous(WeightTransferInitInfo):
    """Where an engine's workers meet the learner: a `Meeting` as plain values, which vLLM can send to any process."""

    kind: str
    """Name of the meeting's class."""
    meeting: dict[str, Any]
    """Its fields."""
    first_worker: int
    """Number of the engine's first worker."""


@dataclass
class Update(WeightTransferUpdateInfo):
    """Some or all of the weights."""

    weights: Iterable[tuple[str, Tensor]] | None = None
    """The tensors themselves, for a worker of this process."""
    expected: Expected = ()
    """Names and shapes, for the workers of other processes."""
    path: str = ""
    """The shared memory that holds these tensors; empty if the learner sends them."""


class WeightReceiver(WeightTransferEngine[Rendezvous, Update]):
    """Receives weights for one worker.

    vLLM fuses and prepacks weights after loading, so they cannot be compared afterwards. The digest is therefore taken
    over the received tensors, cast to the engine's dtype, as they are loaded.
    """

    init_info_cls = Rendezvous
    update_info_cls = Update
    _receiver: Receiver | None = None
    _checksum = ""

    def __init__(self, *args: Any) -> None:
        if multiprocessing.current_process().name.startswith("VllmWorker"):
            end_with_multiprocessing_parent()
        super().__init__(*args)

    def init_transfer_engine(self, init_info: Rendezvous) -> None:
        """Meet the learner. Raises RuntimeError (torch's own) if it does not come."""
        self.shutdown()
        meeting = MEETINGS[init_info.kind](**init_info.meeting)
        self._receiver = meeting.receiver(init_info.first_worker + self.parallel_config.rank)

    def start_weight_update(self) -> None:
        self._digest, self._adapters = Digest(self._dtype()), dict[str, Tensor]()
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Update) -> None:
        """Load weights as they come. Adapters are kept until `finish_weight_update`."""
        self._load(self._digested(self._tensors(update_info)))

    def finish_weight_update(self) -> None:
        """Load the model's files with the adapters merged in, if adapters came; then let vLLM process the weights."""
        if self._adapters:
            base = ((name, weight.to(self.device)) for name, weight in self._files())  # the device merges faster
            self._load(merged(base, self._adapters.items()))
        finalize_layerwise_reload(self.model, self.model_config)
        if self.model_config.hf_text_config.tie_word_embeddings:
            # The head has no weights of its own to load, so vLLM 0.32 keeps the old prepacked copy of it on a CPU.
            model: Any = self.model
            head = (model.get_language_model() if hasattr(model, "get_language_model") else model).lm_head
            head.quant_method.process_weights_after_loading(head)
        self._checksum = self._digest.hexdigest()

    def shutdown(self) -> None:
        """Leave the learner's group."""
        self._receiver = None

    def checksum(self) -> str:
        """Digest (`rlanything.weights.checksum`) of the last weights received, else of the model's files."""
        self._checksum = self._checksum or checksum(self._files(), self._dtype())
        return self._checksum

    def _tensors(self, update: Update) -> Iterable[tuple[str, Tensor]]:
        if update.weights is not None:
            return update.weights
        if update.path:
            return unpacked(update.path, update.expected, self.device)
        assert self._receiver is not None, "no meeting was named"
        return self._receiver.receive(update.expected, self.device)

    def _digested(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in tensors:
            self._digest.add(name, tensor)
            if name.endswith((LORA_A, LORA_B)):
                self._adapters[name] = tensor
            else:
                yield name, tensor

    def _load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        model: Any = self.model
        model.load_weights(weights)

    def _dtype(self) -> torch.dtype:
        assert isinstance(self.model_config.dtype, torch.dtype)
        return self.model_config.dtype

    def _files(self) -> Iterable[tuple[str, Tensor]]:
        """(Hugging Face name, tensor) of every weight in the model's files."""
        loader: Any = get_model_loader(self.vllm_config.load_config)
        weights: Iterable[tuple[str, Tensor]] = loader.get_all_weights(self.model_config, self.model)
        return weights


WeightTransferEngineFactory.register_engine(BACKEND, WeightReceiver)
CONFIG = WeightTransferConfig(backend=BACKEND)


class WorkerExtension:
    """Methods that vLLM mixes into each of its workers."""

    weight_transfer_engine: WeightReceiver

    def rlanything_checksum(self) -> str:
        return self.weight_transfer_engine.checksum()

    def rlanything_memory_gb(self) -> float:
        return peak_memory_gb()


def rendezvous(meeting: Meeting, first_worker: int) -> dict[str, Any]:
    """vLLM's `init_info` for a meeting with the learner."""
    assert isinstance(meeting, BroadcastMeeting | IpcMeeting)
    return asdict(Rendezvous(type(meeting).__name__, asdict(meeting), first_worker))
