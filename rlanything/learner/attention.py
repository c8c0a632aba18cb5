"""Attention over packed token trees: a token sees its ancestors and itself.

In depth-first order token q sees token k exactly where k <= q < ends[k]. A CPU has plain products under a dense mask, a
GPU FlexAttention under the same mask by blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rlanything.errors import LearnerError

QUERY_CHUNK = 128  # queries per attention product: keys after the chunk's end are never touched
FLEX_BLOCK = 128  # FlexAttention's block size, to which rows are padded on a GPU


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention under an additive mask [B, 1, T, T] on a CPU; query [B, H, T, D], key and value [B, K, T, D].

    Depth-first order makes the mask causal, so a chunk of queries needs the keys up to its end alone. Plain
    products beat scaled_dot_product_attention's CPU kernel in training (about 1.5x the whole pass in bfloat16).
    Raises LearnerError where the model caps its scores or has attention sinks.
    """
    if softcap is not None or s_aux is not None:
        raise LearnerError("the model caps its attention scores or has attention sinks, which cannot train on a CPU")
    B, H, T, D = query.shape
    K = key.shape[1]
    query = (query * scaling).to(value.dtype)
    key_t = key.to(value.dtype).transpose(2, 3)
    out = []
    for start in range(0, T, QUERY_CHUNK):
        stop = min(start + QUERY_CHUNK, T)
        n = stop - start
        scores = torch.matmul(query[:, :, start:stop].reshape(B, K, H // K * n, D), key_t[..., :stop])
        scores = scores.view(B, H, n, stop)
        scores += attention_mask[:, :, start:stop, :stop]
        mixed = torch.matmul(scores.softmax(-1).view(B, K, H // K * n, stop), value[:, :, :stop])
        out.append(mixed.view(B, H, n, D))
    return torch.cat(out, dim=2).transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register("rlanything_tree", tree_attention)


def tree_mask(ends: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """FlexAttention's mask_mod for packed trees of `ends` [B, T]: a token sees its ancestors and itself."""

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q < ends[b, k])

    return visible


def dense_mask(ends: Tensor, dtype: torch.dtype) -> Tensor:
    """The same mask, additive: [B, 1, T, T] of 0 and -inf for `ends` [B, T] on a CPU."""
    B, T = ends.shape
    query = torch.arange(T)[None, :, None]
    visible_BTT = (query >= torch.arange(T)) & (query < ends[:, None, :])
    return torch.zeros(B, T, T, dtype=dtype).masked_fill_(~visible_BTT, float("-inf"))[:, None]


def flex_mask(ends: Tensor) -> BlockMask:
    """The same mask for FlexAttention; T must be a multiple of FLEX_BLOCK.

    Which blocks are empty and which are full follows from the least and the greatest end among a block's keys. torch's
    create_block_mask would look at all T x T pairs: gigabytes where T is 32k.
    """
    starts = torch.arange(0, ends.shape[1], FLEX_BLOCK, device=ends.device)
    ends_by_block = ends.view(len(ends), 1, 1, -1, FLEX_BLOCK)
    query = starts[:, None]
    seen = (query >= starts) & (query < ends_by_block.amax(-1))
    full = (query > starts) & (query + FLEX_BLOCK <= ends_by_block.amin(-1))
    partial, partial_order = _ordered(seen & ~full)
    fulls, full_order = _ordered(full)
    return BlockMask.from_kv_blocks(
        partial, partial_order, fulls, full_order, BLOCK_SIZE=FLEX_BLOCK, mask_mod=tree_mask(ends)
    )


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Of every row of [B, 1, N, N]: how many blocks are set, and the blocks' numbers, those that are set first."""
    return blocks.sum(-1, dtype=torch.int32), blocks.int().argsort(stable=True, dim=-1, descending=True).int()
