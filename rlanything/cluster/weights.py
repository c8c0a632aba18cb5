"""Weights on their way from learner rank 0 to every replica: buckets in Ray's shared-memory object store.

Each node reads a bucket from its own shared memory, and fetches it once if the learner is on another node. The learner
gathers one tensor at a time, so the whole model is never on one device. If weights also go directly to the engines
(`rlanything.weights.transfer`), replicas that miss such a transfer read the buckets.
"""

import logging
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from rlanything.weights.checksum import Digest
from rlanything.weights.transfer import Expected, Sender

BUCKET_BYTES = 1 << 28  # so large that a round trip per bucket costs nothing

logger = logging.getLogger(__name__)

Bucket = list[tuple[str, tuple[int, ...], str, np.ndarray]]  # name, shape, dtype, bytes


@dataclass(frozen=True, kw_only=True)
class StagedWeights:
    """All weights of a model. Any process on any node can iterate over (Hugging Face name, tensor), more than once."""

    buckets: list[ray.ObjectRef]
    checksum: str
    """Of the tensors as the learner gathered them (`weights/checksum.py`)."""
    expected: Expected
    """Name, shape and dtype of every tensor."""
    sent: bool
    """Whether this rank's sender sent everything directly to the engines, too."""

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for reference in self.buckets:
            bucket: Bucket = ray.get(reference)
            for name, shape, dtype, data in bucket:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # the store's memory is read-only; we only read it
                    yield name, torch.from_numpy(data).view(getattr(torch, dtype)).view(shape)


def stage(weights: Iterable[tuple[str, Tensor]], keep: bool, sender: Sender | None) -> StagedWeights:
    """Copy the weights into the object store if `keep`, and pass each one to `sender` on the way.

    Ranks other than 0 keep nothing, but all take part: ZeRO-3 gathers a tensor from all ranks, and they may be senders.
    """
    buckets, bucket, size, digest, expected = [], [], 0, None, []
    for name, tensor in weights:
        sender = _send(sender, name, tensor.detach())
        if not keep:
            continue
        data = tensor.detach().cpu().contiguous()
        expected.append((name, tuple(data.shape), str(data.dtype).removeprefix("torch.")))
        digest = digest or Digest(data.dtype)
        digest.add(name, data)
        bucket.append((*expected[-1], data.view(-1).view(torch.uint8).numpy()))
        size += data.nbytes
        if size >= BUCKET_BYTES:
            buckets.append(ray.put(bucket))
            bucket, size = [], 0
    if bucket:
        buckets.append(ray.put(bucket))
    sent = _send(sender) is not None
    checksum = digest.hexdigest() if digest else ""
    return StagedWeights(buckets=buckets, checksum=checksum, expected=tuple(expected), sent=sent)


def _send(sender: Sender | None, *weight: Any) -> Sender | None:
    """Send one weight, or finish if there is none. Returns None once a receiver is lost: it reads the store later."""
    try:
        if sender is not None:
            sender.send(*weight) if weight else sender.finish()
        return sender
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        logger.warning("weights did not reach all engines: %s", error)
        return None
