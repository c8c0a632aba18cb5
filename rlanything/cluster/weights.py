"""Weights on their way from learner rank 0 to every replica: buckets in Ray's shared-memory object store.

A node reads a bucket from its own shared memory, and fetches it once where the learner is on another. The learner
gathers one tensor at a time, so never the whole model is on one device. Where they are broadcast as well
(`rlanything.broadcast`), the buckets are for replicas that miss it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import ray
import torch
from torch import Tensor

from rlanything.broadcast import Expected, Line
from rlanything.checksum import Digest

BUCKET_BYTES = 1 << 28  # large enough that a bucket's round trip does not count

logger = logging.getLogger(__name__)

Bucket = list[tuple[str, tuple[int, ...], str, np.ndarray]]  # name, shape, dtype, bytes


@dataclass(frozen=True)
class StagedWeights:
    """(Hugging Face name, tensor) of every weight, as often as it is iterated, on any node.

    `checksum` is of the tensors as the learner gathered them (`rlanything.checksum`), `expected` what they are, `sent`
    whether all of them were broadcast too.
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


def stage(weights: Iterable[tuple[str, Tensor]], keep: bool = True, line: Line | None = None) -> StagedWeights:
    """Copy the weights into the object store, and broadcast them where there is a line. With `keep` false they are only
    gathered: what the ranks other than 0 do, where ZeRO-3 wants all of them to take part."""
    references, bucket, size, digest, expected = [], [], 0, None, []
    for name, tensor in weights:
        if not keep:
            continue
        if line is not None:
            try:
                line.broadcast(tensor.detach().contiguous())
            except RuntimeError as error:  # the others will find these in the store
                logger.warning("the broadcast of weights broke at %s: %s", name, error)
                line = None
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
    return StagedWeights(references, digest.hexdigest() if digest else "", tuple(expected), line is not None)


def _bytes(data: Tensor) -> np.ndarray:
    return data.view(-1).view(torch.uint8).numpy()
