"""From judged groups to the samples that the learners train on. Pure: ids and numbers in, numpy arrays out."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from rlanything.algorithm.advantages import within
from rlanything.types import Exchange, Group, Judgement, Sample, SampleSet, Trajectory, shared_prefix


def make_sample(exchange: Exchange, advantage: float, mean: str, key: str) -> Sample:
    """One prompt with its response; `mean` is "response" (all responses weigh the same) or "token"."""
    p, r = len(exchange.prompt.ids), len(exchange.response_ids)
    weights = np.zeros(p + r, np.float32)
    weights[p:] = 1.0 / r if mean == "response" else 1.0
    advantages = np.zeros(p + r, np.float32)
    advantages[p:] = advantage
    logprobs = np.zeros(p + r, np.float32)
    logprobs[p:] = exchange.logprobs
    ids = np.asarray([*exchange.prompt.ids, *exchange.response_ids], np.int64)
    return Sample(ids, weights, advantages, logprobs, key, exchange.prompt.images)


def policy_samples(groups: Sequence[Group], band: Sequence[float], mean: str) -> list[Sample]:
    """One sample for every turn that differs from its baseline (advantage not 0), of the groups within the band."""
    return [
        make_sample(turn, turn.advantage, mean, key)
        for group in groups
        if within(group.solved_share, band)
        for t in group.valid
        for key in [_tree(group, t)]
        for turn in t.turns
        if turn.advantage and turn.response_ids  # neither None nor 0
    ]


def _tree(group: Group, trajectory: Trajectory) -> str:
    """Episodes of one tree share the turns before they part."""
    episodes = {t.index: t for t in group.trajectories}
    while trajectory.origin is not None:
        trajectory = episodes[trajectory.origin]
    return f"{group.task.id}/{trajectory.index}"


def num_level(groups: Sequence[Group], band: Sequence[float]) -> int:
    """Turns that `policy_samples` leaves out of groups within the band, because their advantage is 0."""
    return sum(
        turn.advantage == 0
        for group in groups
        if within(group.solved_share, band)
        for t in group.valid
        for turn in t.turns
    )


def reward_samples(groups: Sequence[Group], band: Sequence[float], mean: str) -> list[Sample]:
    """One sample for every judgement that differs from its baseline (advantage not 0), within the band."""
    return [
        make_sample(judgement, judgement.advantage, mean, _session(group, judgement))
        for group in groups
        if within(group.solved_share, band)
        for judgement in group.judgements
        if judgement.advantage != 0.0 and judgement.response_ids
    ]


def sample_sets(samples: Sequence[Sample]) -> list[SampleSet]:
    """The samples by their keys; a sample without a key is a set by itself. Those without any loss weight are left out.

    `tree_tokens` counts the prefixes that neighbours share, so the turns of an episode are best in their order.
    """
    by_key: dict[object, list[Sample]] = defaultdict(list)
    for index, sample in enumerate(samples):
        if sample.weights.any():
            by_key[sample.key or index].append(sample)
    return [_sample_set(members) for members in by_key.values()]


def _sample_set(members: list[Sample]) -> SampleSet:
    tokens = sum(len(sample.ids) for sample in members)
    shared = sum(shared_prefix(a.ids, b.ids) for a, b in pairwise(members))
    num, key = len(members), members[0].key
    return SampleSet(key=key, num=num, tokens=tokens, tree_tokens=tokens - shared, samples=members)


def _session(group: Group, judgement: Judgement) -> str:
    """Judgements of one episode share its history; unit tests share the task's prompt."""
    episode = "tests" if judgement.shared else next(iter(judgement.scores))[0]
    return f"{group.task.id}/{episode}"
