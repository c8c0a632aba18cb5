"""A backend of vLLM's weight-transfer API that brings new weights to vLLM's workers.

vLLM's own backends carry weights over NCCL or CUDA IPC alone, and wait without a limit. This backend takes them
directly from learner ranks (`weights/transfer`: NCCL or CUDA IPC between accelerators, gloo or shared memory between
CPUs), from shared memory of this machine, or as tensors of this process.
Source: docs.vllm.ai, "Weight transfer" and "Layerwise reload".
"""

from __future__ import annotations

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

from rlanything.engines.base import peak_memory_gb
from rlanything.processes.orphans import end_with_multiprocessing_parent
from rlanything.weights.checksum import Digest, checksum
from rlanything.weights.lora import LORA_A, LORA_B, merged
from rlanything.weights.transfer import Expected, Meeting, Receiver
from rlanything.weights.transfer.broadcast import BroadcastMeeting
from rlanything.weights.transfer.ipc import IpcMeeting
from rlanything.weights.transfer.pieces import packed, unpacked

BACKEND = "rlanything"
MEETINGS = {meeting.__name__: meeting for meeting in (BroadcastMeeting, IpcMeeting)}


@dataclass
class Rendezvous(WeightTransferInitInfo):
    """Tells an engine's workers where they meet the learner, and the number of the first worker.

    It holds `transfer.IncomingWeights` as plain values, which vLLM can send to any process.
    """

    kind: str
    meeting: dict[str, Any]
    first_worker: int


@dataclass
class Update(WeightTransferUpdateInfo):
    """Some or all of the weights.

    A worker of this process gets the tensors themselves in `weights`. Others get the names and shapes in `expected`,
    and read the tensors from shared memory at `path`, or receive them from the learner if `path` is empty.
    """

    weights: Iterable[tuple[str, Tensor]] | None = None
    expected: Expected = ()
    path: str = ""


class WeightReceiver(WeightTransferEngine[Rendezvous, Update]):
    """Receives weights for one worker.

    vLLM fuses and prepacks weights after loading, so that they cannot be compared afterwards. The digest is therefore
    taken over the received tensors, cast to the engine's dtype, at the moment they are loaded.
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
        """See `WeightTransferEngine`."""
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
            # The head has no weights of its own to load, so vLLM 0.32 leaves its prepacked copy (CPU) stale.
            head: Any = self.model.lm_head
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
        assert self._receiver is not None, "nobody to meet was named"
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
        dtype = self.model_config.dtype
        assert isinstance(dtype, torch.dtype)
        return dtype

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
        """See `WeightReceiver.checksum`."""
        return self.weight_transfer_engine.checksum()

    def rlanything_memory_gb(self) -> float:
        """See `peak_memory_gb`."""
        return peak_memory_gb()


def rendezvous(meeting: Meeting, first_worker: int) -> dict[str, Any]:
    """vLLM's `init_info` for a meeting with the learner."""
    assert isinstance(meeting, BroadcastMeeting | IpcMeeting)
    return asdict(Rendezvous(type(meeting).__name__, asdict(meeting), first_worker))


def updates(weights: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Any]]:
    """vLLM's `update_info` dicts for weights of this process, which workers read from shared memory."""
    for piece in packed(weights):
        yield {"expected": piece.expected, "path": piece.handle()}
