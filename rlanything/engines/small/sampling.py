"""Samples one token for each of many sequences at once; each has its own seed and temperature."""

import numpy as np
import torch

from rlanything.engines.local import mix


def uniform(seeds: np.ndarray, samples: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Uniform numbers in [0, 1), float64 [N], by chained splitmix64: a pure function of (seed, sample, position)."""
    state = mix(mix(mix(seeds.astype(np.uint64)) + samples.astype(np.uint64)) + positions.astype(np.uint64))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def sample(
    logits_NV: torch.Tensor, temperatures: np.ndarray, top_p: np.ndarray, top_k: np.ndarray, uniforms: np.ndarray
) -> tuple[list[int], list[float]]:
    """Tokens [N] by inverting the cumulative distribution at `uniforms`, and their log-probabilities.

    Log-probabilities are under softmax(logits / temperature) in float32, without top-p and top-k. Temperature 0
    is greedy, with log-probabilities at temperature 1.
    """
    greedy = temperatures == 0
    scale = torch.from_numpy(np.where(greedy, 1.0, temperatures).astype(np.float32))
    logprobs_NV = torch.log_softmax(logits_NV.float() / scale[:, None], dim=-1)
    probs_NV = logprobs_NV.exp()
    for i in np.flatnonzero(~greedy & ((top_p < 1) | (top_k > 0))):
        probs_NV[i] = _truncate(probs_NV[i], float(top_p[i]), int(top_k[i]))
    cumulative_NV = probs_NV.cumsum(-1, dtype=torch.float64)
    target = torch.from_numpy(uniforms)[:, None] * cumulative_NV[:, -1:]
    tokens_N = torch.searchsorted(cumulative_NV, target, right=True)[:, 0].clamp_(max=logits_NV.shape[1] - 1)
    if greedy.any():
        tokens_N = torch.where(torch.from_numpy(greedy), logprobs_NV.argmax(-1), tokens_N)
    return tokens_N.tolist(), logprobs_NV.gather(1, tokens_N[:, None])[:, 0].tolist()


def _truncate(probs_V: torch.Tensor, top_p: float, top_k: int) -> torch.Tensor:
    """Keep the `top_k` likeliest tokens (0 keeps all), and of these the fewest whose probability reaches `top_p`."""
    ordered, order = probs_V.sort(descending=True)
    keep = ordered.cumsum(0) - ordered < top_p * (ordered[:top_k].sum() if top_k else 1.0)
    if top_k:
        keep[top_k:] = False
    return torch.zeros_like(probs_V).index_put((order[keep],), ordered[keep])
