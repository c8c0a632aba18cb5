"""Merges samples that start alike into token trees, so that a shared token is computed once. Pure numpy.

A tree's tokens are in depth-first order: the descendants of node j are the range (j, ends[j]), and node i attends to
node j if and only if j <= i < ends[j]. The array `ends` gives the dense mask on a CPU and the FlexAttention mask on a
GPU. The trained tokens are separate entries (node that predicts, target id), so equal samples share their nodes and
still count twice. The tokens of all images have the same id, and are equal only if the images are. A tree holds samples
of one key: a prefix of several keys (a system prompt) is computed once a key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from rlanything.types import Image, Sample, SampleSet, shared_prefix

FIRST_IMAGE = 1 << 31  # beyond all token ids


@dataclass(frozen=True, kw_only=True)
class Entries:
    """The trained tokens (targets), as arrays of shape [E]."""

    nodes: np.ndarray
    """index of the node whose logits predict the target (int64)"""
    targets: np.ndarray
    """token id of the target (int64)"""
    weights: np.ndarray
    """the `Sample`'s values at the target (float32), here and below"""
    advantages: np.ndarray
    logprobs: np.ndarray
    samples: np.ndarray
    """number of the sample that the target is in, from 0 on (int64)"""

    @classmethod
    def concatenate(cls, parts: Sequence[Entries]) -> Entries:
        """All entries of `parts`, in order, their samples numbered on."""
        joined = {f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)}
        before = np.cumsum([0, *(part.samples.max(initial=-1) + 1 for part in parts[:-1])])
        joined["samples"] = joined["samples"] + np.repeat(before, [len(part.samples) for part in parts])
        return cls(**joined)


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Merged samples: arrays of shape [N] in depth-first order."""

    ids: np.ndarray
    positions: np.ndarray
    """position of each node's token in its samples, shape [P, N]"""
    ends: np.ndarray
    """index behind each node's last descendant"""
    entries: Entries
    sample_tokens: int
    """tokens of all merged samples"""
    images: tuple[Image, ...]
    """images of the nodes, in their order"""

    @property
    def size(self) -> int:
        """Number of nodes N."""
        return len(self.ids)


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """One forward pass over rows of trees: arrays of shape [B, T], positions of shape [P, B, T].

    Padding has id 0 and attends only to itself, because softmax over an empty row of the mask would be nan.
    """

    ids: np.ndarray
    positions: np.ndarray
    ends: np.ndarray
    entries: Entries
    """`nodes` index the flattened [B * T]"""
    tree_tokens: int
    """tokens computed, without padding"""
    sample_tokens: int
    """tokens of all merged samples"""
    images: tuple[Image, ...] = ()
    """images of all trees, row by row"""


def depths(sample: Sample) -> np.ndarray:
    """The positions of a text's tokens, shape [1, T]: 0, 1, 2, ..."""
    return np.arange(len(sample.ids))[None]


def split_minibatches(sets: Sequence[SampleSet], num: int, rng: np.random.Generator) -> list[list[int]]:
    """Split sets, by their indices, into `num` minibatches of about equal tokens, in random order.

    The order of the sets does not matter, only their keys do. If there are fewer sets than `num` there are fewer
    minibatches, so none is empty.
    """
    by_key = sorted(range(len(sets)), key=lambda i: sets[i].key)
    shuffled = [by_key[i] for i in rng.permutation(len(sets))]
    shuffled.sort(key=lambda i: -sets[i].tokens)
    parts = share_out(shuffled, [sets[i].tokens for i in shuffled], min(num, len(sets)))
    return [parts[i] for i in rng.permutation(len(parts))]


def share_out(items: Sequence[int], sizes: Sequence[int], num: int) -> list[list[int]]:
    """Give each item, in order, to that of `num` parts which has the least so far."""
    parts: list[list[int]] = [[] for _ in range(num)]
    loads = np.zeros(num, dtype=np.int64)
    for item, size in zip(items, sizes, strict=True):
        lightest = int(loads.argmin())
        parts[lightest].append(item)
        loads[lightest] += size
    return parts


def rank_shares(minibatch: Sequence[int], sets: Sequence[SampleSet], world: int) -> list[list[int]]:
    """The sets of a minibatch, by their indices, that each of `world` ranks trains on: about equal work."""
    largest_first = sorted(minibatch, key=lambda i: -sets[i].tree_tokens)
    return share_out(largest_first, [sets[i].tree_tokens for i in largest_first], world)


def build_trees(
    samples: Sequence[Sample],
    max_tokens: int,
    pairs_per_token: float = np.inf,
    positions: Callable[[Sample], np.ndarray] = depths,
    patches_per_token: int = 0,
) -> list[Tree]:
    """Merge samples into trees of at most `max_tokens` tokens, and at most so many patches of images; a longer sample
    is a tree of its own. `patches_per_token` patches are behind each token of an image; with 0 they are not counted.

    `positions` gives the positions [P, T] of a sample's tokens. A token's may depend only on what stands before it.

    A sample starts a new tree if its masked pairs with the current tree would cost more than its shared tokens save.
    `pairs_per_token` attention pairs cost as much as one token outside attention; infinity means that attention skips
    masked blocks. Samples without any loss weight are left out.

    Raises ValueError if a sample's first token has a loss weight.
    """
    groups: dict[str, list[tuple[bytes, np.ndarray, Sample]]] = defaultdict(list)
    numbers: dict[str, int] = {}
    for sample in samples:
        if sample.weights[:1].any():
            raise ValueError(f"sample {sample.key!r}: its first token has a loss weight, but nothing predicts it")
        if sample.weights.any():
            identity = _identity(sample, numbers)
            groups[sample.key].append((identity.tobytes(), identity, sample))
    trees = []
    for group in groups.values():
        group.sort(key=lambda pair: pair[0])
        members: list[Sample] = []
        shared: list[int] = []
        size, patches, last = 0, 0, np.empty(0, np.uint32)
        for _, identity, sample in group:
            prefix = shared_prefix(last, identity) if members else 0
            fresh = len(sample.ids) - prefix
            masked_pairs = fresh * (size - prefix)
            seen = patches_per_token * num_image_token(sample.images, prefix)
            too_much = max(size + fresh, patches + seen) > max_tokens
            if members and (too_much or masked_pairs / pairs_per_token > prefix):
                trees.append(_merge(members, shared, positions))
                members, shared, size, patches, prefix = [], [], 0, 0, 0
                seen = patches_per_token * num_image_token(sample.images)
            last = identity
            members.append(sample)
            shared.append(prefix)
            size += len(sample.ids) - prefix
            patches += seen
        if members:
            trees.append(_merge(members, shared, positions))
    return trees


def pack(
    trees: Sequence[Tree], max_tokens: int, row_tokens: int = 0, multiple: int = 1, patches_per_token: int = 0
) -> list[MicroBatch]:
    """Lay trees into micro-batches [B, T] with B * T <= `max_tokens`; a larger tree is a micro-batch of its own.

    First fit by decreasing size, so the rows of a micro-batch have similar lengths and small trees fill gaps in earlier
    rows. Rows have room for at least `row_tokens`; T is a multiple of `multiple`. The images of a micro-batch, each
    counted once, have at most `max_tokens` patches; `patches_per_token` is as for `build_trees`.
    """
    batches: list[list[list[Tree]]] = []
    images: list[dict[str, Image]] = []  # of each batch
    rows: list[tuple[int, list[Tree]]] = []  # (batch, trees) of the rows of all batches
    free: list[int] = []

    def fits(batch: int, tree: Tree) -> bool:
        if not patches_per_token:
            return True
        together = images[batch] | {image.digest: image for image in tree.images}
        return patches_per_token * num_image_token(together.values()) <= max_tokens

    length = num_rows = 0
    for tree in sorted(trees, key=lambda tree: -tree.size):
        fit = next((r for r, room in enumerate(free) if room >= tree.size and fits(rows[r][0], tree)), None)
        if fit is None:
            if not batches or len(batches[-1]) == num_rows or not fits(len(batches) - 1, tree):
                length = -(-max(tree.size, row_tokens) // multiple) * multiple
                num_rows = max(1, max_tokens // length)
                batches.append([])
                images.append({})
            rows.append((len(batches) - 1, []))
            batches[-1].append(rows[-1][1])
            free.append(length)
            fit = len(rows) - 1
        batch, row = rows[fit]
        row.append(tree)
        free[fit] -= tree.size
        images[batch] |= {image.digest: image for image in tree.images}
    return [_lay(batch, multiple) for batch in batches]


def num_image_token(images: Iterable[Image], start: int = 0) -> int:
    """Tokens of the images that begin at `start` or behind it."""
    return sum(image.num_token for image in images if image.start >= start)


def without_weight(batch: MicroBatch) -> MicroBatch:
    """A copy that teaches nothing. ZeRO's collectives need equally many micro-batches on all ranks."""
    entries = replace(batch.entries, weights=np.zeros_like(batch.entries.weights))
    return replace(batch, entries=entries, tree_tokens=0, sample_tokens=0)


def token_counts(batches: Sequence[MicroBatch]) -> dict[str, float]:
    """Metrics of the computed tokens."""
    return {
        "entries": float(sum(np.count_nonzero(b.entries.weights) for b in batches)),
        "tree_tokens": float(sum(b.tree_tokens for b in batches)),
        "sample_tokens": float(sum(b.sample_tokens for b in batches)),
        "padded_tokens": float(sum(b.ids.size for b in batches)),
        "packing_ratio": packing_ratio(batches),
    }


def packing_ratio(batches: Sequence[MicroBatch]) -> float:
    """Tokens of the samples / tokens computed for them without padding; nan if there are none."""
    tree_tokens = sum(b.tree_tokens for b in batches)
    return sum(b.sample_tokens for b in batches) / tree_tokens if tree_tokens else float("nan")


def _identity(sample: Sample, numbers: dict[str, int]) -> np.ndarray:
    """Numbers [T] by which tokens of samples are equal: the ids, and for an image's tokens a number of its content.

    The latter are above all ids, and `numbers` keeps them by digest. Big-endian bytes sort like the numbers.
    """
    identity = sample.ids.astype(">u4")
    for image in sample.images:
        number = FIRST_IMAGE + numbers.setdefault(image.digest, len(numbers))
        identity[image.start : image.start + image.num_token] = number
    return identity


def _merge(members: Sequence[Sample], shared: Sequence[int], positions_of: Callable[[Sample], np.ndarray]) -> Tree:
    """One tree from samples in lexicographic order. Member i shares its first `shared[i]` tokens with member i - 1."""
    places = [positions_of(sample) for sample in members]
    size = sum(len(s.ids) for s in members) - sum(shared)
    ids = np.empty(size, dtype=np.int64)
    positions = np.empty((len(places[0]), size), dtype=np.int64)
    ends = np.full(size, size, dtype=np.int64)
    path = np.empty(0, dtype=np.int64)  # the node of each token of the current member
    entries = []
    images: list[Image] = []
    nodes = 0
    for sample, prefix, place in zip(members, shared, places, strict=True):
        ends[path[prefix:]] = nodes
        first, nodes = nodes, nodes + len(sample.ids) - prefix
        ids[first:nodes] = sample.ids[prefix:]
        positions[:, first:nodes] = place[:, prefix:]
        images += (image for image in sample.images if image.start >= prefix)
        path = np.concatenate([path[:prefix], np.arange(first, nodes)])
        trained = np.flatnonzero(sample.weights)
        part = Entries(
            nodes=path[trained - 1],
            targets=sample.ids[trained].astype(np.int64),
            weights=sample.weights[trained].astype(np.float32),
            advantages=sample.advantages[trained].astype(np.float32),
            logprobs=sample.logprobs[trained].astype(np.float32),
            samples=np.zeros(len(trained), dtype=np.int64),
        )
        entries.append(part)
    sample_tokens = sum(len(s.ids) for s in members)
    return Tree(
        ids=ids,
        positions=positions,
        ends=ends,
        entries=Entries.concatenate(entries),
        sample_tokens=sample_tokens,
        images=tuple(images),
    )


def _lay(rows: Sequence[Sequence[Tree]], multiple: int) -> MicroBatch:
    """One micro-batch with each row's trees end to end."""
    longest = max(sum(tree.size for tree in row) for row in rows)
    length = -(-longest // multiple) * multiple
    ids = np.zeros((len(rows), length), dtype=np.int64)
    positions = np.zeros((len(rows[0][0].positions), *ids.shape), dtype=np.int64)
    ends = np.tile(np.arange(1, length + 1), (len(rows), 1))
    entries = []
    for r, row in enumerate(rows):
        start = 0
        for tree in row:
            span = slice(start, start + tree.size)
            ids[r, span], positions[:, r, span], ends[r, span] = tree.ids, tree.positions, tree.ends + start
            entries.append(replace(tree.entries, nodes=tree.entries.nodes + r * length + start))
            start += tree.size
    return MicroBatch(
        ids=ids,
        positions=positions,
        ends=ends,
        entries=Entries.concatenate(entries),
        tree_tokens=sum(tree.size for row in rows for tree in row),
        sample_tokens=sum(tree.sample_tokens for row in rows for tree in row),
        images=tuple(image for row in rows for tree in row for image in tree.images),
    )
