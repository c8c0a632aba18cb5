"""Which keys must fit together. Each rule yields a message for every fault that it finds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rlanything.config import device_checks
from rlanything.config.roles import ROLES, evaluation_roles, training_roles
from rlanything.config.schema import Config
from rlanything.config.sft import SftConfig
from rlanything.errors import ConfigError


def check(config: Config, learns: bool = True) -> None:
    """Check the keys that a training uses, or an evaluation if it does not learn.

    Raises ConfigError with a line for every fault.
    """
    rules = [_names(config, learns), _contexts(config), _processes(config)]
    rules += [device_checks.one_accelerator(config, learns)]
    if learns:
        rules += [_adaptation(config), _sampling(config), _reward(config)]
        rules += [device_checks.stages(config), device_checks.staleness(config), device_checks.sharing(config)]
    _raise(message for rule in rules for message in rule)


def check_sft(config: SftConfig) -> None:
    """Raises ConfigError with a line for every file of a warm start that is missing."""
    _raise(_files(config))


def _raise(messages: Iterable[str]) -> None:
    if found := list(messages):
        raise ConfigError("\n".join(found))


def _files(config: SftConfig) -> Iterator[str]:
    if not config.model.path:
        yield "model.path: found nothing, expected the model to start from"
    if config.data and not Path(config.data).is_file():
        yield f"data={config.data}: there is no such file"


def _names(config: Config, learns: bool) -> Iterator[str]:
    if not config.experiment.name:
        yield "experiment.name: found nothing, expected the run's name; set it in the YAML, or pass experiment.name=..."
    for role in training_roles(config) if learns else evaluation_roles(config):
        if not config.model.of(role).path:
            key = f"model.{role}.path"
            yield f"{key}: found nothing, expected a folder or hub name; set it in the YAML, or pass {key}=..."


def _contexts(config: Config) -> Iterator[str]:
    needs = {
        "policy": config.rollout.max_response_tokens,
        "reward": config.reward.max_response_tokens if config.reward.num_evaluation else 0,
        "rewriter": config.adaptation.max_response_tokens if config.adaptation.enabled else 0,
    }
    for role in ROLES:
        context, need = config.engine.of(role).max_model_len, needs[role]
        if need >= context:
            yield f"engine.{role}.max_model_len: found {context}, expected more than max_response_tokens ({need})"


def _processes(config: Config) -> Iterator[str]:
    for role in ROLES:
        engine = config.engine.of(role)
        if engine.own_process and role == "policy":
            yield (
                "engine.policy.own_process=true: acting episodes would wait for one another; leave it false (it is for "
                "a judge or a rewriter)"
            )
        if engine.kind == "transformers" and engine.tensor_parallel_size > 1:
            yield (
                f"engine.{role}.tensor_parallel_size={engine.tensor_parallel_size} with kind transformers: the small "
                "engine is one process; use kind=vllm, or tensor_parallel_size=1 and a larger num_replica"
            )


def _adaptation(config: Config) -> Iterator[str]:
    low, high = config.adaptation.alpha_low, config.adaptation.alpha_high
    if low >= high:
        yield f"adaptation.alpha_low, alpha_high: found {low}, {high}, expected alpha_low < alpha_high"


def _sampling(config: Config) -> Iterator[str]:
    rollout = config.rollout
    if (rollout.top_p < 1 or rollout.top_k > 0) and not rollout.allow_biased_sampling:
        yield (
            f"rollout.top_p={rollout.top_p}, rollout.top_k={rollout.top_k}: the learner's logprobs are those of the "
            "whole distribution, so that training on such samples is biased; use top_p=1 top_k=0, or set "
            "rollout.allow_biased_sampling=true"
        )
    if rollout.num_rollout_per_trial < rollout.min_group:
        yield (
            f"rollout.num_rollout_per_trial={rollout.num_rollout_per_trial}: fewer than rollout.min_group="
            f"{rollout.min_group}, so that every task would be dropped; raise one or lower the other"
        )


def _reward(config: Config) -> Iterator[str]:
    step_weight = config.algorithm.step_weight
    if config.reward.num_evaluation == 0 and step_weight != 0:
        yield (
            f"algorithm.step_weight={step_weight}: needs judgements, but reward.num_evaluation=0; "
            "set one of them otherwise (outcome only: reward.num_evaluation=0 algorithm.step_weight=0)"
        )
