"""Which values a configuration may have: choices, ranges, and the keys that must fit together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rlanything.config.roles import LEARNERS, ROLES, needs_cluster, training_roles
from rlanything.config.schema import Config
from rlanything.errors import ConfigError

# {role} and {learner} stand for each of them.
CHOICES: dict[str, tuple[object, ...]] = {
    "experiment.resume": ("auto", "never"),
    "engine.{role}.kind": ("vllm", "transformers"),
    "engine.{role}.dtype": ("auto", "bfloat16", "float32"),
    "cluster.placement": ("colocated", "split"),
    "cluster.weight_transfer": ("auto", "store", "broadcast", "ipc"),
    "dataset.prompt": ("full", "compact"),
    "rollout.max_staleness": (0, 1),
    "rollout.history": ("append_only", "paper"),
    "reward.consistency": ("feedback", "relative", "tests"),
    "reward.step_tests": ("valid_only", "all"),
    "reward.group": ("step", "task"),
    "training.{learner}.schedule": ("constant", "linear", "cosine"),
    "training.{learner}.kl_reference": ("initial", "previous"),
    "training.{learner}.loss_mean": ("response", "token"),
    "training.{learner}.old_logprobs": ("learner", "engine"),
    "training.{learner}.dtype": ("auto", "bfloat16", "float32"),
    "training.{learner}.zero_stage": (0, 1, 2, 3),
}
POSITIVE = (
    "experiment.total_step",
    "experiment.num_node",
    "experiment.device_memory_gb",
    "experiment.save_every",
    "experiment.keep_checkpoint",
    "engine.{role}.max_model_len",
    "engine.{role}.max_num_seqs",
    "engine.{role}.tensor_parallel_size",
    "engine.{role}.num_replica",
    "engine.{role}.step_timeout_s",
    "sandbox.wall_factor",
    "sandbox.memory_mb",
    "sandbox.output_mb",
    "sandbox.num_thread",
    "rollout.num_trial",
    "rollout.num_rollout_per_trial",
    "rollout.max_interaction_step",
    "rollout.max_response_tokens",
    "rollout.temperature",
    "rollout.max_concurrent",
    "rollout.env_timeout_s",
    "rollout.min_group",
    "reward.max_response_tokens",
    "reward.temperature",
    "adaptation.num_try",
    "adaptation.max_response_tokens",
    "adaptation.temperature",
    "training.{learner}.lr",
    "training.{learner}.num_update",
    "training.{learner}.num_epoch",
    "training.{learner}.max_grad_norm",
    "training.{learner}.micro_batch_tokens",
    "training.{learner}.lora_alpha",
    "evaluation.num_rollout",
    "cluster.join_timeout_s",
    "cluster.rank_timeout_s",
    "cluster.restart_timeout_s",
)
NOT_NEGATIVE = (
    "experiment.seed",
    "experiment.num_device",
    "experiment.eval_every",
    "experiment.num_thread",
    "dataset.num_task",
    "sandbox.num_runner",
    "rollout.num_retry",
    "rollout.top_k",
    "reward.num_evaluation",
    "algorithm.outcome_weight",
    "algorithm.step_weight",
    "algorithm.negative_weight",
    "adaptation.max_candidate",
    "training.{learner}.warmup_update",
    "training.{learner}.weight_decay",
    "training.{learner}.clip_low",
    "training.{learner}.clip_high",
    "training.{learner}.kl_beta",
    "training.{learner}.importance_cap",
    "training.{learner}.lora_rank",
    "evaluation.num_task",
    "evaluation.temperature",
    "cluster.num_learner",
    "cluster.num_env_host",
    "cluster.num_restart",
)
SINKS = ("tensorboard", "wandb", "trackio")
Expand = Callable[[str], list[str]]


def every_role(pattern: str) -> list[str]:
    """The keys of `Config` that a pattern stands for."""
    if "{role}" in pattern:
        return [pattern.replace("{role}", role) for role in ROLES]
    return [pattern.replace("{learner}", learner) for learner in LEARNERS] if "{learner}" in pattern else [pattern]


def value_of(config: object, key: str) -> object:
    """The value at a dotted key."""
    for part in key.split("."):
        config = getattr(config, part)
    return config


def check_choices(config: object, expand: Expand) -> None:
    """Raise ConfigError where a key of CHOICES has another value."""
    for pattern, choices in CHOICES.items():
        for key in expand(pattern):
            found = value_of(config, key)
            if found not in choices:
                raise ConfigError(f"{key}: found {found!r}, expected one of {', '.join(map(str, choices))}")


def check_numbers(config: object, expand: Expand, positive: Sequence[str] = POSITIVE) -> None:
    """Raise ConfigError where a number is outside its range."""
    for patterns, lowest, expected in ((positive, 1e-300, "above 0"), (NOT_NEGATIVE, 0.0, "of at least 0")):
        for key in (key for pattern in patterns for key in expand(pattern)):
            found = value_of(config, key)
            if not (isinstance(found, (int, float)) and lowest <= found < math.inf):
                raise ConfigError(f"{key}: found {found!r}, expected a number {expected}")
    for key in expand("training.{learner}.betas"):
        found = value_of(config, key)
        if not (isinstance(found, list) and len(found) == 2 and all(0 <= beta < 1 for beta in found)):
            raise ConfigError(f"{key}: found {found!r}, expected two numbers of at least 0 and below 1")


def validate(config: Config, learns: bool = True) -> None:
    """Check what types cannot say; of an evaluation, which does not learn, only what it uses. Raises ConfigError naming
    the key."""
    check_choices(config, every_role)
    check_numbers(config, every_role)
    for sink in config.experiment.sinks:
        if sink not in SINKS:
            raise ConfigError(f"experiment.sinks: found {sink!r}, expected some of {', '.join(SINKS)}")
    _check_contexts(config)
    _check_processes(config)
    _check_single_accelerator(config, learns)
    _check_sampling(config, learns)
    if learns:
        _check_bands(config)
        _check_reward(config)
        _check_stages(config)
        _check_staleness(config)
        _check_sharing(config)


def _check_bands(config: Config) -> None:
    for key in ("algorithm.band", "reward.band"):
        band = value_of(config, key)
        if not (isinstance(band, list) and len(band) == 2 and 0 <= band[0] <= band[1] <= 1):
            raise ConfigError(f"{key}: found {band!r}, expected [low, high] with 0 <= low <= high <= 1")
    adaptation = config.adaptation
    if not 0 <= adaptation.alpha_low < adaptation.alpha_high <= 1:
        raise ConfigError(
            f"adaptation.alpha_low, alpha_high: found {adaptation.alpha_low}, {adaptation.alpha_high}, "
            "expected 0 <= alpha_low < alpha_high <= 1"
        )


def _check_sampling(config: Config, learns: bool) -> None:
    rollout = config.rollout
    if not 0 < rollout.top_p <= 1:
        raise ConfigError(f"rollout.top_p: found {rollout.top_p}, expected a number above 0 and at most 1")
    if not learns:
        return
    if (rollout.top_p < 1 or rollout.top_k > 0) and not rollout.allow_biased_sampling:
        raise ConfigError(
            f"rollout.top_p={rollout.top_p}, rollout.top_k={rollout.top_k}: the learner's logprobs are those of the "
            "whole distribution, so training on such samples is biased; use top_p=1 top_k=0, or set "
            "rollout.allow_biased_sampling=true"
        )
    if rollout.num_rollout_per_trial < rollout.min_group:
        raise ConfigError(
            f"rollout.num_rollout_per_trial={rollout.num_rollout_per_trial}: fewer than rollout.min_group="
            f"{rollout.min_group}, so that every group would be dropped; raise one or lower the other"
        )


def _check_reward(config: Config) -> None:
    reward = config.reward
    if reward.num_evaluation == 0 and config.algorithm.step_weight != 0:
        raise ConfigError(
            f"algorithm.step_weight={config.algorithm.step_weight}: needs evaluations, but reward.num_evaluation=0; "
            "set one of them otherwise (outcome only: reward.num_evaluation=0 algorithm.step_weight=0)"
        )


def _check_processes(config: Config) -> None:
    for role in ROLES:
        engine = getattr(config.engine, role)
        if engine.own_process and role == "policy":
            why = "acting episodes would wait for one another" if role == "policy" else "vLLM has its own processes"
            raise ConfigError(
                f"engine.{role}.own_process=true with kind {engine.kind}: {why}; "
                "leave it false (it is for a judge or a rewriter on the small engine)"
            )
        if engine.kind == "transformers" and engine.tensor_parallel_size > 1:
            raise ConfigError(
                f"engine.{role}.tensor_parallel_size={engine.tensor_parallel_size} with kind transformers: the small "
                "engine is one process; use kind=vllm, or tensor_parallel_size=1 and a larger num_replica"
            )


def _check_single_accelerator(config: Config, learns: bool) -> None:
    if not config.experiment.num_node == config.experiment.num_device == 1:
        return
    used = [role for role in training_roles(config) if getattr(config.model, role).path]  # an evaluation may have one
    engines = {role: getattr(config.engine, role) for role in used}
    for role, engine in engines.items():
        if engine.num_replica > 1 or engine.tensor_parallel_size > 1:
            raise ConfigError(
                f"engine.{role}.num_replica={engine.num_replica}, tensor_parallel_size={engine.tensor_parallel_size}: "
                "expected 1 and 1 on one accelerator; lower them, or raise experiment.num_device"
            )
    if learns and config.cluster.placement == "split":
        raise ConfigError(
            "cluster.placement=split: one accelerator cannot be split between engines and learners; use colocated, or "
            "raise experiment.num_device"
        )
    if learns and config.cluster.num_learner > 1:
        raise ConfigError(
            f"cluster.num_learner={config.cluster.num_learner}: expected at most 1 on one accelerator; lower it, or "
            "raise experiment.num_device"
        )
    shares = [engine.gpu_memory_utilization for engine in engines.values() if engine.kind == "vllm"]
    if sum(shares) >= 1:
        raise ConfigError(
            f"engine.*.gpu_memory_utilization: {' + '.join(f'{s:g}' for s in shares)} of one accelerator; expected "
            "less than 1 together, with room for what each process needs besides (such as 0.3 each)"
        )


def _check_stages(config: Config) -> None:
    for learner in (role for role in training_roles(config) if role in LEARNERS):
        training = getattr(config.training, learner)
        if training.offload and training.zero_stage == 0:
            raise ConfigError(
                f"training.{learner}.offload=true with zero_stage=0: DeepSpeed holds optimizer states on the host at "
                "stages 1 to 3; raise zero_stage, or set offload=false"
            )
        if training.compile and training.zero_stage == 3:
            raise ConfigError(
                f"training.{learner}.compile=true with zero_stage=3: DeepSpeed gathers weights in the middle of what "
                "would be compiled; use zero_stage=2, or set compile=false"
            )


def _check_staleness(config: Config) -> None:
    if not config.rollout.max_staleness:
        return
    if not needs_cluster(config):
        raise ConfigError(
            "rollout.max_staleness=1: one process cannot make tokens while it learns; expected 0, or processes of "
            "their own for engines and learners (engine.*.num_replica, cluster.num_learner, experiment.num_device)"
        )
    for learner in (role for role in training_roles(config) if role in LEARNERS):
        training = getattr(config.training, learner)
        if training.old_logprobs == "learner" and training.importance_cap == 0:
            raise ConfigError(
                f"training.{learner}.importance_cap=0 with rollout.max_staleness=1: nothing would correct for the "
                "older weights that played; expected a cap such as 2, or old_logprobs=engine"
            )


def _check_sharing(config: Config) -> None:
    if config.cluster.placement != "colocated" or not config.experiment.num_device:
        return
    if config.rollout.max_staleness:
        raise ConfigError(
            "rollout.max_staleness=1: accelerators that engines and learners share cannot do both at once; use "
            "cluster.placement=split"
        )
    if config.cluster.weight_transfer == "broadcast":
        raise ConfigError(
            "cluster.weight_transfer=broadcast: NCCL wants an accelerator for each of its ends, and learners "
            "share theirs with engines; use weight_transfer=auto, or cluster.placement=split"
        )
    for learner in (role for role in training_roles(config) if role in LEARNERS):
        if getattr(config.training, learner).zero_stage == 0:
            raise ConfigError(
                f"training.{learner}.zero_stage=0: cluster.placement=colocated hands accelerators over between engines "
                "and learners, which DeepSpeed can at stages 1 to 3; raise it, or use cluster.placement=split"
            )
        if getattr(config.training, learner).zero_stage == 3 and getattr(config.training, learner).lora_rank:
            raise ConfigError(
                f"training.{learner}.lora_rank with zero_stage=3: DeepSpeed cannot hand over an accelerator that holds "
                "frozen weights in parts; use zero_stage=2, or cluster.placement=split"
            )


def _check_contexts(config: Config) -> None:
    needs = {
        "policy": config.rollout.max_response_tokens,
        "reward": config.reward.max_response_tokens if config.reward.num_evaluation else 0,
        "rewriter": config.adaptation.max_response_tokens if config.adaptation.enabled else 0,
    }
    for role, need in needs.items():
        context = getattr(config.engine, role).max_model_len
        if need >= context:
            raise ConfigError(
                f"engine.{role}.max_model_len: found {context}, expected more than max_response_tokens ({need})"
            )
