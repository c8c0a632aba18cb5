"""The objective against numbers worked out by hand."""

import math

import pytest
import torch

from rlanything.config.schema import LearnerConfig
from rlanything.learner.loss import TokenBatch, policy_loss, supervised_loss


def evaluate(
    ratios,
    advantages,
    engine_ratios=None,
    weights=None,
    reference_shift=None,
    total_weight=None,
    responses=None,
    **config,
):
    """(loss, metrics, d loss / d new) for given ratios new/old and old/engine, and shift log ref - log new."""
    new = torch.full((len(ratios),), -1.0, requires_grad=True)
    old = new.detach() - torch.tensor(ratios).log()
    weights = torch.tensor(weights if weights is not None else [1.0] * len(ratios))
    batch = TokenBatch(
        weights=weights,
        advantages=torch.tensor(advantages),
        old=old,
        engine=old - torch.tensor(engine_ratios or [1.0] * len(ratios)).log(),
        reference=None if reference_shift is None else new.detach() + torch.tensor(reference_shift),
        sampling=old,
        responses=torch.tensor(responses or [0] * len(ratios)),
    )
    entropy = torch.full_like(new, 2.0)
    settings = LearnerConfig(clip_low=0.2, clip_high=0.3, **config)
    loss, metrics = policy_loss(new, entropy, batch, total_weight or float(weights.sum()), settings)
    loss.backward()
    return float(loss.detach()), {k: float(v) for k, v in metrics.items()}, new.grad.tolist()


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.5, 2.0, -1.3 * 2.0, 0.0),  # above 1 + high with gain: clipped, no gradient
        (1.25, 2.0, -1.25 * 2.0, -2.5),  # above 1 + low but below 1 + high
        (0.5, 2.0, -0.5 * 2.0, -1.0),  # a falling good token is never clipped
        (0.5, -2.0, 0.8 * 2.0, 0.0),  # below 1 - low with gain: clipped
        (1.5, -2.0, 1.5 * 2.0, 3.0),  # a rising bad token is never clipped
    ],
)
def test_low_and_high_clip_separately(ratio, advantage, expected, slope):
    loss, metrics, grad = evaluate([ratio], [advantage], kl_beta=0.0)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert grad[0] == pytest.approx(slope, rel=1e-5)
    assert metrics["clip_fraction_high"] == (ratio > 1.3 and advantage > 0)
    assert metrics["clip_fraction_low"] == (ratio < 0.8 and advantage < 0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "slope"),
    [
        (2.0, -2.0, 4.0, 4.0),  # below the bound: as without it
        (5.0, -2.0, 3.0 * 2.0, 0.0),  # above: bounded, no gradient
        (5.0, 2.0, -1.3 * 2.0, 0.0),  # a positive advantage is clipped as ever
        (0.5, -2.0, 0.8 * 2.0, 0.0),
    ],
)
def test_the_dual_clip_bounds_tokens_of_negative_advantage_alone(ratio, advantage, expected, slope):
    loss, metrics, grad = evaluate([ratio], [advantage], kl_beta=0.0, dual_clip=3.0)
    assert loss == pytest.approx(expected, rel=1e-5) and grad[0] == pytest.approx(slope, rel=1e-5)
    assert metrics["dual_clip_fraction"] == (ratio == 5.0 and advantage < 0)


def test_the_ratio_of_a_response_is_the_geometric_mean_of_its_tokens():
    # Response 0: ratios 1.21 and 1, mean 1.1; response 1: 4 and 1, mean 2, clipped at 1.3 for a gain.
    given = {"responses": [0, 1, 0, 1], "weights": [0.5] * 4, "kl_beta": 0.0, "ratio": "response"}
    loss, metrics, grad = evaluate([1.21, 4.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0], **given)
    assert loss == pytest.approx(-(1.1 * 2 + 1.3 * 2) / 2, rel=1e-5)
    # d loss / d new of each token of response 0: -(1/2) * 1.1 * 2 * (1/2), for it moves the mean by a half.
    assert grad == pytest.approx([-0.55, 0.0, -0.55, 0.0], rel=1e-5)
    assert metrics["clip_fraction_high"] == pytest.approx(0.5)
    _, _, falling = evaluate([1.21, 4.0, 1.0, 1.0], [2.0, -2.0, 2.0, -2.0], **given)
    assert falling == pytest.approx([-0.55, 1.0, -0.55, 1.0], rel=1e-5)  # a rising bad response is never clipped


def test_a_response_of_one_token_has_the_tokens_ratio():
    each = {"kl_beta": 0.0, "responses": [2, 0, 1]}
    by_token = evaluate([1.1, 0.7, 1.5], [1.0, -2.0, 3.0], **each, ratio="token")
    assert evaluate([1.1, 0.7, 1.5], [1.0, -2.0, 3.0], **each, ratio="response") == by_token


def test_importance_weights_are_truncated_from_above_only():
    loss, metrics, _ = evaluate([1.0, 1.0], [1.0, 1.0], engine_ratios=[5.0, 0.5], importance_cap=2.0, kl_beta=0.0)
    assert loss == pytest.approx(-(2.0 + 0.5) / 2, rel=1e-5)
    assert metrics["importance_truncated"] == 0.5
    assert metrics["logprob_abs_diff"] == pytest.approx((math.log(5) + math.log(2)) / 2, rel=1e-5)
    assert metrics["mismatch_kl"] == pytest.approx((5 - 1 - math.log(5) + 0.5 - 1 + math.log(2)) / 2, rel=1e-5)


def test_cap_zero_means_no_importance_correction():
    loss, metrics, _ = evaluate([1.0], [1.0], engine_ratios=[5.0], importance_cap=0.0, kl_beta=0.0)
    assert loss == pytest.approx(-1.0)
    assert metrics["importance_truncated"] == 0


def test_k3_against_the_reference():
    loss, metrics, grad = evaluate([1.0], [0.0], reference_shift=[math.log(2)], kl_beta=0.1)
    assert loss == pytest.approx(0.1 * (2 - 1 - math.log(2)), rel=1e-5)
    assert metrics["kl_reference"] == pytest.approx(1 - math.log(2), rel=1e-5)
    assert grad[0] == pytest.approx(0.1 * (1 - 2), rel=1e-5)  # pulls the token up towards the reference


def test_without_a_reference_there_is_no_kl():
    loss, metrics, _ = evaluate([1.0], [0.0], kl_beta=0.0)
    assert loss == 0 and "kl_reference" not in metrics


def test_response_weights_and_token_weights_give_the_two_means():
    ratios, advantages = [1.0] * 4, [1.0, 4.0, 4.0, 4.0]  # a response of one token, a response of three
    per_token, _, _ = evaluate(ratios, advantages, weights=[1.0] * 4, kl_beta=0.0)
    per_response, _, _ = evaluate(ratios, advantages, weights=[1.0, 1 / 3, 1 / 3, 1 / 3], kl_beta=0.0)
    assert per_token == pytest.approx(-13 / 4)
    assert per_response == pytest.approx(-(1 + 4) / 2)


def test_micro_batches_add_up_to_the_minibatch():
    whole, _, _ = evaluate([1.1, 0.9], [1.0, -2.0], weights=[1.0, 3.0], kl_beta=0.0)
    first, _, _ = evaluate([1.1], [1.0], weights=[1.0], total_weight=4.0, kl_beta=0.0)
    second, _, _ = evaluate([0.9], [-2.0], weights=[3.0], total_weight=4.0, kl_beta=0.0)
    assert whole == pytest.approx(first + second, rel=1e-5)


def test_entropy_bonus_lowers_the_loss():
    loss, metrics, _ = evaluate([1.0], [0.0], kl_beta=0.0, entropy_bonus=0.5)
    assert loss == pytest.approx(-0.5 * 2.0) and metrics["entropy"] == 2.0


def test_cross_entropy_is_a_weighted_mean():
    loss, _ = supervised_loss(torch.tensor([-1.0, -3.0]), torch.zeros(2), torch.tensor([1.0, 3.0]), 4.0)
    assert float(loss) == pytest.approx((1 + 9) / 4)
