"""Samples for a learner, and what its weights are."""

import numpy as np
import torch

from rlanything.learner.attention import FLEX_BLOCK
from rlanything.learner.packing import build_trees, pack
from rlanything.types import Sample


def random_samples(seed, num=12):
    """Samples of 6 to 29 random tokens, all but the first four trained; two samples a key."""
    rng = np.random.default_rng(seed)
    samples = []
    for i in range(num):
        n = int(rng.integers(6, 30))
        mask = np.r_[np.zeros(4), np.ones(n - 4)]
        ids, advantages = rng.integers(3, 64, n), rng.normal(size=n) * mask
        samples.append(Sample(ids, mask, advantages, rng.uniform(-5, -3, n) * mask, key=str(i // 2)))
    return samples


@torch.no_grad()
def logprobs_in_one_row(learner, samples, temperature=1.0):
    """Log-probabilities [E] of the samples' trained tokens under the present weights, in one row of trees."""
    (batch,) = pack(build_trees(samples, 1000), 1000, multiple=FLEX_BLOCK)
    return learner.model(batch, temperature)[0].cpu()


def weights_of(learner):
    """Copies of the trained weights by name."""
    return {name: tensor.clone() for name, tensor in learner.weights()}
