"""Weights on their way from learner rank 0 to every replica: buckets in Ray's shared-memory object store.

A node reads a bucket from its own shared memory, and fetches it once where the learner is on another. The learner
gathers one tensor at a time, so never the whole model is on one device. Where they go straight to the engines as well
(`rlanything.weights.transfer`), the buckets are for replicas that miss them.
"""

from __future__ import annotations

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

BUCKET_BYTES = 1 << 28  # large enough that a bucket's round trip does not count

logger = logging.getLogger(__name__)

Bucket = list[tuple[str, tuple[int, ...], str, np.ndarray]]  # name, shape, dtype, bytes


@dataclass(frozen=True)
class StagedWeights:
    """(Hugging Face name, tensor) of every weight, as often as it is iterated, on any node.

    `checksum` is of the tensors as the learner gathered them (`weights/checksum.py`), `expected` what they are, `sent`
    whether this rank sent all that it had to send straight to engines too.
    """

    buckets: list[ray.ObjectRef]
    checksum: str
    expected: Expected
    sent: bool

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for reference in self.buckets:
            bucket: Bucket = ray.get(reference)
            for name, shape, dtype, data in bucket:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # the store's memory is read-only, and so are we
                    yield name, torch.from_numpy(data).view(getattr(torch, dtype)).view(shape)


def stage(weights: Iterable[tuple[str, Tensor]], keep: bool = True, sender: Sender | None = None) -> StagedWeights:
    """Copy the weights into the object store, and send them on the way. With `keep` false they are sent alone, or just
    gathered: what the ranks other than 0 do, where ZeRO-3 wants all of them to take part."""

    def straight(*weight: Any) -> None:
        """Send one on, or nothing after the last, as long as those who take them are there."""
        nonlocal sender
        if sender is not None:
            try:
                sender.send(*weight) if weight else sender.finish()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # who took them will find them in the store
                logger.warning("weights did not reach all engines: %s", error)
                sender = None

    references, bucket, size, digest, expected = [], [], 0, None, []
    for name, tensor in weights:
        straight(name, tensor.detach())
        if not keep:
            continue
        data = tensor.detach().cpu().contiguous()
        expected.append((name, tuple(data.shape), str(data.dtype).removeprefix("torch.")))
        digest = digest or Digest(data.dtype)
        digest.add(name, data)
        bucket.append((*expected[-1], _bytes(data)))
        size += data.nbytes
        if size >= BUCKET_BYTES:
            references.append(ray.put(bucket))
            bucket, size = [], 0
    if bucket:
        references.append(ray.put(bucket))
    straight()
    return StagedWeights(references, digest.hexdigest() if digest else "", tuple(expected), sender is not None)


def _bytes(data: Tensor) -> np.ndarray:
    return data.view(-1).view(torch.uint8).numpy()
