"""The domain's own labels in the place of a reward model: exact, or flipped at a known rate, and trained by nobody."""

import asyncio

import pytest
from builders import diagnostics, group, trajectory

from rlanything.algorithm.advantages import assign_advantages
from rlanything.algorithm.consistency import assign_consistency
from rlanything.algorithm.samples import reward_samples
from rlanything.config.roles import engine_roles
from rlanything.config.schema import AlgorithmConfig, Config, RewardConfig
from rlanything.domains.parts import StepJudging
from rlanything.errors import ConfigError
from rlanything.rollout.judging import make_judge
from rlanything.types import Task


def judged(labels, task=None, **keys):
    """A group of two episodes with these labels, judged."""
    made = group(trajectory(1, [()] * len(labels)), trajectory(-1, [()] * len(labels)), task=task)
    for t in made.trajectories:
        for turn, label in zip(t.turns, labels, strict=True):
            turn.label = label if t.success or label is None else -label
    config = RewardConfig(judge="label", **keys)
    asyncio.run(make_judge(None, StepJudging("compact"), config, "seed", required=True).finish(made))
    return made


def test_exact_labels_are_the_step_signal_and_train_no_reward_model():
    made = judged([1, -1, None], num_evaluation=2)
    assign_advantages([made], AlgorithmConfig(advantage="separate", outcome_weight=0.0, step_weight=1.0))
    assign_consistency([made], RewardConfig())
    signals = [[turn.signal for turn in t.turns] for t in made.trajectories]
    assert signals == [[1, -1, None], [-1, 1, None]] and len(made.judgements) == 8
    assert made.trajectories[0].turns[0].advantage == 1 and made.trajectories[0].turns[2].advantage is None
    assert reward_samples([made], [0.0, 1.0], "token") == []
    assert diagnostics([made])["rm_process_accuracy"] == 1.0
    assert {j.text for j in made.judgements} == {"\\boxed{1}", "\\boxed{-1}"}, "no remark that a rewriter would read"


def test_noise_flips_as_many_as_it_says_and_the_same_ones_again():
    first, again = (judged([1] * 200, num_evaluation=3, label_noise=0.3) for _ in range(2))
    assert 0.65 < diagnostics([first])["rm_process_accuracy"] < 0.75
    assert [j.scores for j in first.judgements] == [j.scores for j in again.judgements]


def test_no_model_is_loaded_for_it_and_a_domain_without_labels_is_named():
    config = Config()
    config.reward.judge = "label"
    assert engine_roles(config) == ["policy", "rewriter"]
    with pytest.raises(ConfigError, match="reward.judge=label: the environment of task q labels no step"):
        judged([None, None])


def test_a_variant_whose_steps_nobody_can_label_has_no_judgement_and_ends_no_run():
    variant = Task(id="q~1", payload={}, parent_id="q")
    assert judged([None, None], variant).judgements == []
