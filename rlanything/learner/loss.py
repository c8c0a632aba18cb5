"""The policy-gradient objective as a pure function of log-probabilities.

All tensors have shape [E], one value per trained token, and log-probabilities are of softmax(logits / temperature), the
distribution that was sampled from. A micro-batch contributes its share of the weighted mean over the whole minibatch
(`total_weight` is the minibatch's), so the losses and metrics of micro-batches are added, never averaged.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlanything.config.schema import LearnerConfig


@dataclass(eq=False, kw_only=True)
class TokenBatch:
    """The loss's inputs for each trained token, besides its new log-probability."""

    weights: Tensor
    """loss weights"""
    advantages: Tensor
    engine: Tensor
    """log-probabilities from the engine, when it sampled"""
    old: Tensor
    """log-probabilities in the denominator of the surrogate's ratio"""
    responses: Tensor
    """number of the response that a token is in, from 0 on (int64)"""
    reference: Tensor | None = None
    """log-probabilities under the KL term's reference; None: no KL term"""
    sampling: Tensor | None = None
    """the learner's log-probabilities under the weights that sampled, to compare with `engine`; None if unknown"""


def policy_loss(
    new: Tensor, entropy: Tensor, batch: TokenBatch, total_weight: float, config: LearnerConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Weighted mean of -importance weight x clipped surrogate + beta x k3 KL - bonus x entropy; returns loss, metrics.

    - Surrogate: PPO (Schulman et al. 2017) with separate epsilons below and above (DAPO), and if asked for bounded
      below where the advantage is negative (dual clip, Ye et al. 2020, arXiv 1912.09729). With `ratio: response` all
      tokens of a response have the geometric mean of their ratios (GSPO, Zheng et al. 2025, arXiv 2507.18071).
    - Importance weight: min(pi_old / pi_engine, cap), because learner and engine round differently (Yao et al. 2025).
    - k3: exp(d) - 1 - d with d = log ref - log new (Schulman, "Approximating KL divergence").
    """
    log_ratio = new - batch.old
    if config.ratio == "response":
        log_ratio = _mean_of_response(log_ratio, batch.responses)
    ratio = torch.exp(log_ratio)
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    gain = unbounded = torch.minimum(ratio * batch.advantages, clipped * batch.advantages)
    if config.dual_clip:
        bound = config.dual_clip * batch.advantages
        gain = torch.where(batch.advantages < 0, torch.maximum(gain, bound), gain)
    uncapped = torch.exp(batch.old - batch.engine) if config.importance_cap else torch.ones_like(ratio)
    importance = uncapped.clamp(max=config.importance_cap or 1.0)
    per_token = -importance * gain

    def mean(x: Tensor) -> Tensor:
        return (batch.weights * x).sum() / total_weight

    metrics = {"policy_loss": mean(per_token)}
    if batch.reference is not None:
        kl = _k3(batch.reference - new)
        per_token = per_token + config.kl_beta * kl
        metrics["kl_reference"] = mean(kl)
    if config.entropy_bonus:
        per_token = per_token - config.entropy_bonus * entropy
    loss = mean(per_token)
    with torch.no_grad():
        metrics |= {
            "loss": loss,
            "entropy": mean(entropy),
            "ratio": mean(ratio),
            "clip_fraction_low": mean(((ratio < 1 - config.clip_low) & (batch.advantages < 0)).float()),
            **({"dual_clip_fraction": mean((gain > unbounded).float())} if config.dual_clip else {}),
            "clip_fraction_high": mean(((ratio > 1 + config.clip_high) & (batch.advantages > 0)).float()),
            "approx_kl": mean(_k3(new - batch.old)),
            "importance_weight": mean(importance),
            "importance_truncated": mean((importance < uncapped).float()),
        }
        if batch.sampling is not None:
            mismatch = batch.sampling - batch.engine
            metrics |= {"mismatch_kl": mean(_k3(mismatch)), "logprob_abs_diff": mean(mismatch.abs())}
    return loss, {name: value.detach() for name, value in metrics.items()}


def supervised_loss(
    new: Tensor, entropy: Tensor, weights: Tensor, total_weight: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Cross-entropy, the weighted mean of -log p(target); returns loss and metrics."""
    loss = -(weights * new).sum() / total_weight
    return loss, {"loss": loss.detach(), "entropy": (weights * entropy).sum().detach() / total_weight}


def _mean_of_response(x: Tensor, responses: Tensor) -> Tensor:
    """Each token's value replaced by the mean over its response."""
    num = int(responses.max()) + 1 if len(responses) else 0
    sums = x.new_zeros(num).index_add(0, responses, x)
    counts = x.new_zeros(num).index_add(0, responses, torch.ones_like(x))
    return (sums / counts)[responses]


def _k3(log_ratio: Tensor) -> Tensor:
    """An estimate of KL(q || p) >= 0 from log(p / q) at samples of q."""
    return torch.exp(log_ratio) - 1 - log_ratio
