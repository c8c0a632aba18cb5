"""The recipes have the values of the published code, but for those that the heads of the files name."""

from pathlib import Path

import pytest

from rlanything.config.load import load_config, load_sft
from rlanything.domains.osworld.options import OsworldOptions
from rlanything.domains.reasoning.domain import ReasoningOptions

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
    "reasoning_rl": {  # GRPO-TCR
        "experiment": {"num_node": 1, "num_device": 8, "total_step": 450, "eval_every": 10, "save_every": 30},
        "rollout": {"num_trial": 64, "num_rollout_per_trial": 16, "max_episode_tokens": 20480}
        | {"temperature": 1.0, "top_p": 1.0},
        "algorithm": {"advantage": "trajectory", "step_weight": 0.0, "call_bonus": 0.1, "call_bonus_max": 0.4}
        | {"call_bonus_on": "wrong", "overlong_limit": 20480, "overlong_buffer": 4096, "overlong_penalty": 1.0},
        "reward": {"num_evaluation": 0},
        "evaluation": {"temperature": 1.0, "top_p": 0.6, "num_task": 0, "splits": ["aime2024", "aime2025"]},
        "training.policy": {"lr": 1e-6, "clip_low": 0.2, "clip_high": 0.28, "dual_clip": 10, "kl_beta": 0.0}
        | {"loss_mean": "token", "ratio": "token", "num_update": 4, "num_epoch": 1, "weight_decay": 0.01}
        | {"max_grad_norm": 1.0, "schedule": "constant"},
    },
    "reasoning_eval": {
        "rollout": {"max_episode_tokens": 20480},
        "evaluation": {"num_rollout": 32, "temperature": 1.0, "top_p": 0.6, "num_task": 0}
        | {"splits": ["aime2024", "aime2025", "gpqa_diamond", "lcb_v6"]},
    },
    "reasoning_sft": {
        "": {"batch": 32, "max_update": 465, "max_tokens": 32768},
        "training": {"lr": 1e-5, "schedule": "cosine", "warmup_update": 47, "weight_decay": 0.01},
    },
}


def load(name):
    words = [f"config={ROOT}/configs/{name}.yaml"]
    if name.endswith("_sft"):
        return load_sft([*words, f"data={__file__}"])  # a file that is there
    return load_config(words, learns=name.endswith("_rl"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_has_the_published_values(name):
    config = load(name).model_dump()
    for section, values in PUBLISHED[name].items():
        found = config
        for part in section.split(".") if section else ():
            found = found[part]
        assert {key: found[key] for key in values} == values, section


@pytest.mark.parametrize("name", ["osworld_rl", "osworld_eval"])
def test_osworld_recipes_show_as_many_screens_as_their_engine_takes(name):
    config = load(name)
    options = OsworldOptions.model_validate(config.dataset.options)
    assert (options.backend, options.max_screens, config.engine.policy.max_images) == ("docker", 3, 3)
    assert config.rollout.history == "paper" and config.rollout.env_timeout_s > options.setup_s + options.evaluate_s


@pytest.mark.parametrize("name", ["reasoning_rl", "reasoning_eval", "reasoning_sft"])
def test_reasoning_recipes_leave_a_turn_for_the_answer_after_16_calls(name):
    config = load(name)
    limits = config if name.endswith("_sft") else config.rollout
    calls = ReasoningOptions.model_validate(config.dataset.options).max_calls
    assert (calls, limits.max_interaction_step) == (16, 17)
