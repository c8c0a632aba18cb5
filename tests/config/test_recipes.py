"""The recipes have the values of the published code, but for those that the heads of the files name."""

from pathlib import Path

import pytest

from rlanything.config.load import load_config

ROOT = Path(__file__).parents[2]
LEARNER = {"lr": 1e-6, "clip_low": 0.2, "clip_high": 0.2, "kl_beta": 0.01, "kl_reference": "previous"}
LEARNER |= {"betas": [0.9, 0.999], "weight_decay": 0.0, "max_grad_norm": 1.0, "schedule": "constant", "num_epoch": 1}
ADAPTATION = {"alpha_low": 0.2, "alpha_high": 0.8, "temperature": 0.8, "train_dropped": False}
PUBLISHED = {
    "alfworld_rl": {
        "experiment": {"total_step": 200, "eval_every": 5},
        "rollout": {
            "num_trial": 16,
            "num_rollout_per_trial": 8,
            "max_interaction_step": 40,
            "max_response_tokens": 2000,
        }
        | {"temperature": 0.8, "history": "paper"},
        "algorithm": {"band": [0.125, 0.875]},
        "reward": {"num_evaluation": 3, "max_response_tokens": 4000, "temperature": 0.8, "band": [0.2, 0.8]},
        "adaptation": ADAPTATION | {"num_try": 8, "max_candidate": 16, "max_response_tokens": 8192},
        "evaluation": {"num_rollout": 3, "max_interaction_step": 50, "temperature": 0.8, "top_p": 0.95, "num_task": 0}
        | {"splits": ["eval_in_distribution"]},
        "training.policy": LEARNER | {"num_update": 4},
        "training.reward": LEARNER | {"num_update": 4},
    },
    "coding_rl": {
        "experiment": {"total_step": 300, "eval_every": 10},
        "rollout": {"num_trial": 64, "num_rollout_per_trial": 32, "max_response_tokens": 2048, "temperature": 1.0},
        "algorithm": {"band": [0.2, 0.8]},
        "reward": {"num_evaluation": 16, "max_response_tokens": 2048, "temperature": 0.8, "band": [0.2, 0.8]},
        "adaptation": ADAPTATION | {"num_try": 3, "max_candidate": 64, "max_response_tokens": 8096},
        "evaluation": {"temperature": 0, "num_task": 0},
        "dataset.options": {"num_test": 8, "time_limit_s": 2},
        "training.policy": LEARNER | {"num_update": 2},
        "training.reward": LEARNER | {"num_update": 2},
    },
    "osworld_rl": {
        "experiment": {"total_step": 400, "num_node": 12, "num_device": 8},
        "rollout": {"num_trial": 12, "num_rollout_per_trial": 8, "max_interaction_step": 30, "temperature": 1.0},
        "reward": {"num_evaluation": 3, "temperature": 0.8},
        "adaptation": ADAPTATION | {"max_candidate": 12},
        "training.policy": LEARNER | {"num_update": 4},
        "training.reward": LEARNER | {"num_update": 2},
    },
    "alfworld_eval": {
        "rollout": {"max_interaction_step": 30, "max_response_tokens": 2000, "history": "paper"},
        "evaluation": {"num_rollout": 4, "temperature": 0.6, "top_p": 0.95, "num_task": 0},
    },
    "coding_eval": {
        "rollout": {"max_response_tokens": 2000},
        "reward": {"num_evaluation": 32, "max_response_tokens": 2048, "temperature": 0.8},
        "evaluation": {"temperature": 0, "num_task": 0},
        "dataset.options": {"num_test": 8, "time_limit_s": 6},
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_has_the_published_values(name):
    config = load_config([f"config={ROOT}/configs/{name}.yaml"], learns=name.endswith("_rl")).model_dump()
    for section, values in PUBLISHED[name].items():
        found = config
        for part in section.split("."):
            found = found[part]
        assert {key: found[key] for key in values} == values, section
