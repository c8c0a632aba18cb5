"""Samples that start alike become one token tree: each shared token is computed once. Pure numpy.

A tree's tokens lie in depth-first order, so the descendants of node j are the contiguous range (j, ends[j]) and
node i attends to node j exactly where j <= i < ends[j]. That one array gives the dense mask on a CPU and the
FlexAttention mask on a GPU. What is trained is kept apart from the tokens, as entries (predictor node, target id):
identical samples share their nodes and still count twice. A tree never spans two keys, so what different keys have
in common (a system prompt) is computed once per key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlanything.types import Sample


@dataclass(frozen=True)
class Entries:
    """What the loss sums over: arrays of shape [E].

    `nodes` index the token whose logits predict `targets`; the rest is the Sample's value at the target.
    """

    nodes: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    advantages: np.ndarray
    logprobs: np.ndarray


@dataclass(frozen=True)
class Tree:
    """Merged samples: arrays of shape [N] in depth-first order; `parents` is -1 at a root, `ends` is exclusive."""

    ids: np.ndarray
    positions: np.ndarray
    parents: np.ndarray
    ends: np.ndarray
    entries: Entries
    sample_tokens: int

    @property
    def size(self) -> int:
        """Tokens of the tree."""
        return len(self.ids)


@dataclass(frozen=True)
class MicroBatch:
    """One forward pass: `ids`, `positions`, `ends` of shape [B, T]; `entries.nodes` index the flattened [B * T].

    Padding is id 0 and ends at itself, hence attends to itself alone: no row of the mask is empty.
    """

    ids: np.ndarray
    positions: np.ndarray
    ends: np.ndarray
    entries: Entries
    tree_tokens: int
    sample_tokens: int


def split_minibatches(samples: Sequence[Sample], num: int, rng: np.random.Generator) -> list[list[Sample]]:
    """At most `num` minibatches of about equal tokens, in random order; samples of one key stay together.

    A sample without a key stands alone. Fewer keys than `num` make fewer minibatches, never an empty one.
    """
    groups: dict[object, list[Sample]] = defaultdict(list)
    for index, sample in enumerate(samples):
        groups[sample.key or index].append(sample)
    keyed = list(groups.values())
    shuffled = [keyed[i] for i in rng.permutation(len(keyed))]
    shuffled.sort(key=lambda group: -sum(len(s.ids) for s in group))
    parts: list[list[Sample]] = [[] for _ in range(min(num, len(keyed)))]
    loads = np.zeros(len(parts), dtype=np.int64)
    for group in shuffled:
        lightest = int(loads.argmin())
        parts[lightest] += group
        loads[lightest] += sum(len(s.ids) for s in group)
    return [parts[i] for i in rng.permutation(len(parts))]


def build_trees(samples: Sequence[Sample], max_tokens: int, pairs_per_token: float = np.inf) -> list[Tree]:
    """Merge samples into trees of at most `max_tokens` tokens (more only where one sample alone is longer).

    `pairs_per_token` is how many attention pairs cost as much as one token elsewhere in the model: a sample that
    shares so little that its masked pairs would cost more than the shared tokens save starts a tree of its own.
    Infinite where the attention skips masked blocks. Raises ValueError where a first token has a loss weight.
    """
    groups: dict[str, list[tuple[bytes, Sample]]] = defaultdict(list)
    for sample in samples:
        if sample.weights[:1].any():
            raise ValueError(f"Sample {sample.key!r}: its first token has a loss weight but nothing predicts it")
        if sample.weights.any():
            # Big-endian bytes sort as the token ids do.
            groups[sample.key].append((sample.ids.astype(">u4").tobytes(), sample))
    trees = []
    for group in groups.values():
        group.sort(key=lambda pair: pair[0])
        members: list[Sample] = []
        shared: list[int] = []
        size = 0
        for _, sample in group:
            prefix = _common_prefix(members[-1].ids, sample.ids) if members else 0
            fresh = len(sample.ids) - prefix
            masked_pairs = fresh * (size - prefix)
            if members and (size + fresh > max_tokens or masked_pairs / pairs_per_token > prefix):
                trees.append(_merge(members, shared))
                members, shared, size, prefix = [], [], 0, 0
            members.append(sample)
            shared.append(prefix)
            size += len(sample.ids) - prefix
        if members:
            trees.append(_merge(members, shared))
    return trees


def pack(trees: Sequence[Tree], max_tokens: int, row_tokens: int = 0, multiple: int = 1) -> list[MicroBatch]:
    """Lay trees into micro-batches of [B, T] with B * T <= `max_tokens` (more only for one larger tree).

    First fit by decreasing size, so rows of one micro-batch have similar lengths, and small trees fill what any row has
    left. Rows are at least `row_tokens` long where trees are to be laid end to end rather than side by side; T is a
    multiple of `multiple`.
    """
    batches: list[list[list[Tree]]] = [[]]
    rows: list[list[Tree]] = []  # of all batches
    free: list[int] = []
    length = num_rows = 0
    for tree in sorted(trees, key=lambda tree: -tree.size):
        fit = next((row for row, room in enumerate(free) if room >= tree.size), None)
        if fit is None:
            if len(batches[-1]) == num_rows:
                length = -(-max(tree.size, row_tokens) // multiple) * multiple
                num_rows = max(1, max_tokens // length)
                batches.append([])
            rows.append([])
            batches[-1].append(rows[-1])
            free.append(length)
            fit = len(rows) - 1
        rows[fit].append(tree)
        free[fit] -= tree.size
    return [_lay(batch, multiple) for batch in batches[1:]]


def packing_ratio(batches: Sequence[MicroBatch]) -> float:
    """Tokens of the samples over tokens computed for them (padding left out); nan without any."""
    tree_tokens = sum(b.tree_tokens for b in batches)
    return sum(b.sample_tokens for b in batches) / tree_tokens if tree_tokens else float("nan")


def _common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n


def _merge(members: Sequence[Sample], shared: Sequence[int]) -> Tree:
    """One tree of samples in lexicographic order; `shared[i]` tokens of member i are those of member i - 1."""
    size = sum(len(s.ids) for s in members) - sum(shared)
    ids = np.empty(size, dtype=np.int64)
    positions = np.empty(size, dtype=np.int64)
    parents = np.empty(size, dtype=np.int64)
    ends = np.full(size, size, dtype=np.int64)
    path = np.empty(0, dtype=np.int64)  # node of each token of the current member
    nodes, used = 0, []
    entries = []
    for sample, prefix in zip(members, shared, strict=True):
        ends[path[prefix:]] = nodes
        grown = nodes + len(sample.ids) - prefix
        ids[nodes:grown] = sample.ids[prefix:]
        positions[nodes:grown] = np.arange(prefix, len(sample.ids))
        parents[nodes:grown] = np.arange(nodes - 1, grown - 1)
        if grown > nodes:
            parents[nodes] = path[prefix - 1] if prefix else -1
        path = np.concatenate([path[:prefix], np.arange(nodes, grown)])
        nodes = grown
        trained = np.flatnonzero(sample.weights)
        used.append(trained)
        entries.append(path[trained - 1])
    return Tree(
        ids=ids,
        positions=positions,
        parents=parents,
        ends=ends,
        entries=Entries(
            nodes=np.concatenate(entries),
            targets=np.concatenate([s.ids[t] for s, t in zip(members, used, strict=True)]).astype(np.int64),
            weights=np.concatenate([s.weights[t] for s, t in zip(members, used, strict=True)]).astype(np.float32),
            advantages=np.concatenate([s.advantages[t] for s, t in zip(members, used, strict=True)]).astype(np.float32),
            logprobs=np.concatenate([s.logprobs[t] for s, t in zip(members, used, strict=True)]).astype(np.float32),
        ),
        sample_tokens=sum(len(s.ids) for s in members),
    )


def _lay(rows: Sequence[Sequence[Tree]], multiple: int) -> MicroBatch:
    longest = max(sum(tree.size for tree in row) for row in rows)
    length = -(-longest // multiple) * multiple
    ids = np.zeros((len(rows), length), dtype=np.int64)
    positions = np.zeros_like(ids)
    ends = np.tile(np.arange(1, length + 1), (len(rows), 1))
    nodes = []
    for r, row in enumerate(rows):
        start = 0
        for tree in row:
            span = slice(start, start + tree.size)
            ids[r, span], positions[r, span], ends[r, span] = tree.ids, tree.positions, tree.ends + start
            nodes.append(tree.entries.nodes + r * length + start)
            start += tree.size
    entries = [tree.entries for row in rows for tree in row]
    return MicroBatch(
        ids=ids,
        positions=positions,
        ends=ends,
        entries=Entries(
            nodes=np.concatenate(nodes),
            targets=np.concatenate([e.targets for e in entries]),
            weights=np.concatenate([e.weights for e in entries]),
            advantages=np.concatenate([e.advantages for e in entries]),
            logprobs=np.concatenate([e.logprobs for e in entries]),
        ),
        tree_tokens=sum(tree.size for row in rows for tree in row),
        sample_tokens=sum(tree.sample_tokens for row in rows for tree in row),
    )
