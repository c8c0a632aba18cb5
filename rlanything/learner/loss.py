"""The policy-gradient objective as one pure function of log-probabilities: no model, no distribution, no state.

All tensors have shape [E], one value per trained token, and belong to the behaviour distribution, i.e. to
softmax(logits / temperature). A micro-batch contributes its share of the weighted mean over the whole minibatch
(`total_weight` is the minibatch's), so losses and metrics of micro-batches are added, never averaged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlanything.config.schema import LearnerConfig


@dataclass(frozen=True)
class TokenBatch:
    """What the loss knows of each trained token.

    `old` are the log-probabilities that the surrogate's ratio is taken against, `engine` those of the sampler,
    `reference` those of the KL's reference, None where its weight is 0. `before` are the learner's own with the
    weights that sampled, None where no pass gave them: they measure how far learner and engine differ.
    """

    weights: Tensor
    advantages: Tensor
    old: Tensor
    engine: Tensor
    reference: Tensor | None = None
    before: Tensor | None = None


def policy_loss(
    new: Tensor, entropy: Tensor, batch: TokenBatch, total_weight: float, config: LearnerConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped surrogate x truncated importance weight + beta * k3 KL - bonus * entropy, as a weighted mean.

    Surrogate: Schulman et al. 2017 with separate epsilons (DAPO). Importance weight: min(pi_old / pi_engine, cap),
    for the learner and the engine round differently (Yao et al. 2025). k3: Schulman's "Approximating KL divergence",
    d = log ref - log new; exp(d) - 1 - d.
    """
    ratio = torch.exp(new - batch.old)
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    gain = torch.minimum(ratio * batch.advantages, clipped * batch.advantages)
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
            "clip_fraction_high": mean(((ratio > 1 + config.clip_high) & (batch.advantages > 0)).float()),
            "approx_kl": mean(_k3(new - batch.old)),
            "importance_weight": mean(importance),
            "importance_truncated": mean((importance < uncapped).float()),
        }
        if batch.before is not None:
            mismatch = batch.before - batch.engine
            metrics |= {"mismatch_kl": mean(_k3(mismatch)), "logprob_abs_diff": mean(mismatch.abs())}
    return loss, {name: value.detach() for name, value in metrics.items()}


def supervised_loss(
    new: Tensor, entropy: Tensor, weights: Tensor, total_weight: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Cross-entropy: the weighted mean of -log p(target)."""
    loss = -(weights * new).sum() / total_weight
    return loss, {"loss": loss.detach(), "entropy": (weights * entropy).sum().detach() / total_weight}


def _k3(log_ratio: Tensor) -> Tensor:
    """Estimates KL(q || p) >= 0 from log(p / q) at samples of q."""
    return torch.exp(log_ratio) - 1 - log_ratio
