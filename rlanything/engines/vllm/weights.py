"""New weights for vLLM's workers, through vLLM's weight-transfer API, in which this is a backend of its own.

vLLM's backends carry weights over NCCL or CUDA IPC alone, and without a limit on how long they wait. This one takes
them from whoever has them: from the learner's broadcast (`rlanything.broadcast`: NCCL between accelerators, gloo
between CPUs), from memory that a process of this machine shares, or as tensors of this very process.
Source: docs.vllm.ai, "Weight transfer" and "Layerwise reload".
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
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

from rlanything.broadcast import Expected, IncomingWeights, Line, Meeting
from rlanything.checksum import Digest, checksum
from rlanything.engines.base import peak_memory_gb
from rlanything.engines.unnamed_memory import SharedMemory
from rlanything.engines.vllm.orphans import end_with_parent
from rlanything.lora import LORA_A, LORA_B, merged

BACKEND = "rlanything"
SHARED_BYTES = 1 << 28  # of one piece of shared memory: few round trips, and a second one fits beside it
ALIGNMENT = 64  # bytes, more than any dtype wants


@dataclass
class Rendezvous(WeightTransferInitInfo):
    """Where an engine's workers meet the learner (`broadcast.Meeting`), the first of them as `first_rank`."""

    meeting: dict[str, Any]
    first_rank: int


@dataclass
class Update(WeightTransferUpdateInfo):
    """Some of the weights, or all of them: `weights` themselves for a worker of this process, else what is `expected`,
    in memory that another one shares at `path`, or by broadcast where there is none."""

    weights: Iterable[tuple[str, Tensor]] | None = None
    expected: Expected = ()
    path: str = ""


class WeightReceiver(WeightTransferEngine[Rendezvous, Update]):
    """One worker's end.

    vLLM fuses and prepacks weights after loading, so they cannot be compared afterwards: the digest is taken over the
    tensors that came, cast to the engine's dtype, at the moment they are loaded.
    """

    init_info_cls = Rendezvous
    update_info_cls = Update
    _line: Line | None = None
    _checksum = ""

    def __init__(self, *args: Any) -> None:
        if multiprocessing.current_process().name.startswith("VllmWorker"):
            end_with_parent()
        super().__init__(*args)

    def init_transfer_engine(self, init_info: Rendezvous) -> None:
        """Meet the learner; raises RuntimeError (torch's own) where it does not come."""
        self.shutdown()
        self._line = Line(Meeting(**init_info.meeting), init_info.first_rank + self.parallel_config.rank)

    def start_weight_update(self) -> None:
        """See `WeightTransferEngine`."""
        self._digest, self._adapters = Digest(self._dtype()), dict[str, Tensor]()
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Update) -> None:
        """Load weights as they come; adapters wait for those that they belong to."""
        self._load(self._digested(self._tensors(update_info)))

    def finish_weight_update(self) -> None:
        """Where adapters came, load the weights of the files with these added; then what has waited for all others."""
        if self._adapters:
            self._load(merged(self._files(), self._adapters.items()))
        finalize_layerwise_reload(self.model, self.model_config)
        if self.model_config.hf_text_config.tie_word_embeddings:
            # The head has no weights of its own to load, so vLLM 0.32 leaves its prepacked copy (CPU) stale.
            head: Any = self.model.lm_head
            head.quant_method.process_weights_after_loading(head)
        self._checksum = self._digest.hexdigest()

    def shutdown(self) -> None:
        """Hang up."""
        self._line = None

    def checksum(self) -> str:
        """Digest of what came last (`rlanything.checksum`), else of the model's files, read once more."""
        self._checksum = self._checksum or checksum(self._files(), self._dtype())
        return self._checksum

    def _tensors(self, update: Update) -> Iterable[tuple[str, Tensor]]:
        if update.weights is not None:
            return update.weights
        if update.path:
            return mapped(update.path, update.expected)
        assert self._line is not None, "nobody to meet was named"
        return self._line.receive(update.expected, self.device)

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


def rendezvous(weights: IncomingWeights) -> dict[str, Any]:
    """vLLM's `init_info` for them: plain values, which travel to any process."""
    return asdict(Rendezvous(asdict(weights.meeting), weights.first_rank))


def shared(weights: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Any]]:
    """vLLM's `update_info` for weights in shared memory, piece by piece. A piece is there until the next one is asked
    for, and whoever has mapped it keeps it longer."""
    piece: list[tuple[str, Tensor]] = []
    for name, tensor in weights:
        if piece and sum(t.nbytes for _, t in piece) + tensor.nbytes > SHARED_BYTES:
            yield from _share(piece)
            piece = []
        piece.append((name, tensor.detach().cpu().contiguous()))
    if piece:
        yield from _share(piece)


def _share(piece: list[tuple[str, Tensor]]) -> Iterator[dict[str, Any]]:
    expected = tuple((name, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in piece)
    *offsets, size = _offsets([t.nbytes for _, t in piece])
    memory = SharedMemory(create=True, size=size)
    try:
        assert memory.buf is not None
        for (_, tensor), offset in zip(piece, offsets, strict=True):
            memory.buf[offset : offset + tensor.nbytes] = tensor.view(-1).view(torch.uint8).numpy().data
        yield {"expected": expected, "path": memory.name}
    finally:
        memory.close()


def mapped(path: str, expected: Expected) -> Iterator[tuple[str, Tensor]]:
    """The weights that another process shares at `path`; they keep its memory."""
    memory = SharedMemory(path)
    try:
        # Not torch.frombuffer: it would not keep the memory mapped.
        data = torch.from_numpy(np.frombuffer(memory.map, dtype=np.uint8))
    finally:
        memory.close()
    shapes = [(name, shape, getattr(torch, dtype)) for name, shape, dtype in expected]
    sizes = [torch.Size(shape).numel() * dtype.itemsize for _, shape, dtype in shapes]
    for (name, shape, dtype), size, offset in zip(shapes, sizes, _offsets(sizes), strict=False):
        yield name, data[offset : offset + size].view(dtype).view(tuple(shape))


def _offsets(sizes: list[int]) -> list[int]:
    """Where each of `sizes` begins, and where the last one ends [bytes]."""
    offsets = [0]
    for size in sizes:
        offsets.append(-(-(offsets[-1] + size) // ALIGNMENT) * ALIGNMENT)
    return offsets
