"""From judged groups to the samples that the learners train on. Pure: ids and numbers in, numpy arrays out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlanything.algorithm.advantages import within
from rlanything.types import Group, Sample


def make_sample(
    prompt: Sequence[int], response: Sequence[int], logprobs: Sequence[float], advantage: float, mean: str, key: str
) -> Sample:
    """One prompt and response; `mean` is "response" (all responses weigh the same) or "token"."""
    p, r = len(prompt), len(response)
    weights = np.zeros(p + r, np.float32)
    weights[p:] = 1.0 / r if mean == "response" else 1.0
    advantages = np.zeros(p + r, np.float32)
    advantages[p:] = advantage
    behaviour = np.zeros(p + r, np.float32)
    behaviour[p:] = logprobs
    return Sample(np.asarray([*prompt, *response], np.int64), weights, advantages, behaviour, key)


def policy_samples(groups: Sequence[Group], band: Sequence[float], mean: str) -> list[Sample]:
    """One sample a turn that has an advantage, of the groups whose accuracy lies within the band."""
    return [
        make_sample(turn.prompt_ids, turn.response_ids, turn.logprobs, turn.advantage, mean, f"{t.task_id}/{t.index}")
        for group in groups
        if within(group.accuracy, band)
        for t in group.valid
        for turn in t.turns
        if turn.advantage is not None and turn.response_ids
    ]


def reward_samples(groups: Sequence[Group], band: Sequence[float], mean: str) -> list[Sample]:
    """One sample an evaluation whose vote differs from its baseline (advantage not 0), within the band; likewise for
    unit tests."""
    tests = [
        make_sample(e.prompt_ids, e.response_ids, e.logprobs, e.advantage, mean, f"{group.task.id}/tests")
        for group in groups
        if within(group.accuracy, band)
        for e in group.tests
        if e.advantage != 0.0 and e.response_ids
    ]
    return tests + [
        make_sample(e.prompt_ids, e.response_ids, e.logprobs, e.advantage, mean, f"{t.task_id}/{t.index}")
        for group in groups
        if within(group.accuracy, band)
        for t in group.valid
        for turn in t.turns
        for e in turn.evaluations
        if e.advantage != 0.0 and e.response_ids
    ]
