"""Attention over packed token trees: a token sees its ancestors and itself.

In depth-first order, token q sees token k if and only if k <= q < ends[k]. A CPU computes plain matrix products under a
dense mask. A GPU runs FlexAttention under the same mask in blocks.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.utils.checkpoint import checkpoint
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rlanything.errors import LearnerError

QUERY_CHUNK = 128  # queries per matrix product: the keys behind a chunk are skipped
KEPT_SCORES = 1 << 26  # scores of a layer kept for its backward pass: 256 MiB in float32; more are computed anew there
CPU_ATTENTION, GPU_ATTENTION = "rlanything_tree", "rlanything_flex"  # names of these functions in transformers
FLEX_BLOCK = 128  # FlexAttention's block size; rows are padded to a multiple of it on a GPU


def _refuse(softcap: float | None, s_aux: Tensor | None) -> None:
    if softcap is not None or s_aux is not None:
        raise LearnerError("the model caps its attention scores or has attention sinks, which the learner cannot train")


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
    """Attention on a CPU; returns the output [B, T, H, D].

    query [B, H, T, D], key and value [B, K, T, D], additive mask [B, 1, T, T]. Depth-first order makes the mask causal,
    so a chunk of queries needs only the keys up to its end. Plain products train faster than the CPU kernel of
    scaled_dot_product_attention (about 1.5x for the whole pass in bfloat16). A long row's scores are not kept: those
    of three screenshots of 1080p would be 2.8 GiB a layer.

    Raises LearnerError if the model caps its scores or has attention sinks, which this function lacks.
    """
    _refuse(softcap, s_aux)
    B, H, T, D = query.shape
    query = (query * scaling).to(value.dtype)
    key_t = key.to(value.dtype).transpose(2, 3)
    recompute = torch.is_grad_enabled() and H * T * T // 2 > KEPT_SCORES
    out = []
    for start in range(0, T, QUERY_CHUNK):
        stop = min(start + QUERY_CHUNK, T)
        seen = query[:, :, start:stop], key_t[..., :stop], value[:, :, :stop], attention_mask[:, :, start:stop, :stop]
        if recompute:
            out.append(checkpoint(_mixed, *seen, use_reentrant=False, preserve_rng_state=False))
        else:
            out.append(_mixed(*seen))
    return torch.cat(out, dim=2).transpose(1, 2), None


def _mixed(query: Tensor, key_t: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """N queries mix S values; returns [B, H, N, D].

    query [B, H, N, D], key_t [B, K, D, S], value [B, K, S, D], mask [B, 1, N, S].
    """
    B, H, n, D = query.shape
    K, stop = key_t.shape[1], key_t.shape[3]
    scores = torch.matmul(query.reshape(B, K, H // K * n, D), key_t).view(B, H, n, stop)
    scores += mask
    return torch.matmul(scores.softmax(-1).view(B, K, H // K * n, stop), value).view(B, H, n, D)


@cache
def _compiled_flex_attention() -> Any:
    """Compiled when it is first needed: torch's compiler takes a second to import, and a CPU never needs it."""
    return torch.compile(flex_attention)


def tree_flex_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: BlockMask,
    scaling: float,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention on a GPU; shapes and errors as of `tree_attention`, the mask from `flex_mask`.

    Unlike transformers' own "flex_attention", it takes queries and keys that a norm with float32 weights left in
    float32, and never copies the keys and values of grouped heads.
    """
    _refuse(softcap, s_aux)
    # Inside a compiled layer, FlexAttention becomes a part of that layer's graph.
    flex: Any = flex_attention if torch.compiler.is_compiling() else _compiled_flex_attention()
    query, key = query.to(value.dtype), key.to(value.dtype)
    out = flex(query, key, value, block_mask=attention_mask, scale=scaling, enable_gqa=query.shape[1] != key.shape[1])
    return out.transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register(CPU_ATTENTION, tree_attention)
ALL_ATTENTION_FUNCTIONS.register(GPU_ATTENTION, tree_flex_attention)


def tree_mask(ends: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The mask of packed trees as FlexAttention's mask_mod(batch, head, query, key), from `ends` [B, T]."""

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q < ends[b, k])

    return visible


def dense_mask(ends: Tensor, dtype: torch.dtype) -> Tensor:
    """The same mask to add to scores on a CPU: [B, 1, T, T] of 0 and -inf, from `ends` [B, T]."""
    B, T = ends.shape
    batch, token = torch.arange(B), torch.arange(T)
    visible_B1TT = tree_mask(ends)(batch[:, None, None, None], torch.tensor(0), token[:, None], token)
    return torch.zeros(B, 1, T, T, dtype=dtype).masked_fill_(~visible_B1TT, float("-inf"))


def flex_mask(ends: Tensor) -> BlockMask:
    """The same mask for FlexAttention, from `ends` [B, T]; T must be a multiple of FLEX_BLOCK.

    The least and the greatest end of a block's keys decide if the block is empty or full. torch's create_block_mask
    would evaluate all T x T pairs, which takes gigabytes at T = 32k.
    """
    starts = torch.arange(0, ends.shape[1], FLEX_BLOCK, device=ends.device)
    ends_by_block = ends.view(len(ends), 1, 1, -1, FLEX_BLOCK)
    query = starts[:, None]
    seen = (query >= starts) & (query < ends_by_block.amax(-1))
    full = (query > starts) & (query + FLEX_BLOCK <= ends_by_block.amin(-1))
    return BlockMask.from_kv_blocks(
        *_ordered(seen & ~full), *_ordered(full), BLOCK_SIZE=FLEX_BLOCK, mask_mod=tree_mask(ends)
    )


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The number of set blocks in each row of [B, 1, N, N], and the indices of all blocks, the set ones first."""
    return blocks.sum(-1, dtype=torch.int32), blocks.int().argsort(stable=True, dim=-1, descending=True).int()
