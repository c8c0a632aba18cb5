"""Which keys must fit together. Each rule yields a message for every fault that it finds."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from rlanything.config.faults import shown
from rlanything.config.roles import ROLES, engine_roles, learner_roles, needs_cluster
from rlanything.config.schema import Config, LearnerConfig
from rlanything.config.section import Learner
from rlanything.config.sft import SftConfig
from rlanything.errors import ConfigError

MAX_NAME = 200  # bytes of a folder's name: file systems take 255, and files beside it have longer names


def check(config: Config, learns: bool = True) -> None:
    """Check the keys that a training uses, or an evaluation if it does not learn.

    Raises ConfigError with a line for every fault.
    """
    rules = [
        _names(config, learns),
        _splits(config),
        _prompts(config),
        _engines(config),
        _one_accelerator(config, learns),
    ]
    if learns:
        rules += [_algorithm(config), _stages(config), _staleness(config), _sharing(config)]
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
    if config.dataset.accuracy:
        yield "dataset.accuracy: found a file, but a warm start does not choose its tasks; leave it empty"
    if config.policy.path and (config.role != "reward" or config.data):
        yield f"policy.path={config.policy.path}: only a reward model without data=FILE learns from a policy's episodes"
    if config.data and not Path(config.data).is_file():
        yield f"data={config.data}: there is no such file"
    if config.num_held_out and not config.data:
        yield f"num_held_out={config.num_held_out}: conversations are held out of a file alone; set data, or leave it 0"


def _names(config: Config, learns: bool) -> Iterator[str]:
    if not config.experiment.name:
        yield "experiment.name: found nothing, expected the run's name; set it in the YAML, or pass experiment.name=..."
    elif not all(map(_names_folder, config.experiment.name.split("/"))):
        yield (
            f"experiment.name: found {shown(config.experiment.name)}, expected the name of a folder: at most "
            f"{MAX_NAME} bytes, without control characters, not absolute, and not . or .."
        )
    for role in engine_roles(config, learns):
        if not config.model.of(role).path:
            key = f"model.{role}.path"
            yield f"{key}: found nothing, expected a folder or hub name; set it in the YAML, or pass {key}=..."


def _splits(config: Config) -> Iterator[str]:
    splits = config.evaluation.splits
    if twice := sorted({split for split in splits if splits.count(split) > 1}):
        yield f"evaluation.splits: found {', '.join(twice)} twice; name each split once"
    if long := next((split for split in splits if len(split.encode("utf-8", "surrogatepass")) > MAX_NAME), ""):
        yield f"evaluation.splits: found {shown(long)}, expected names of at most {MAX_NAME} bytes"


def _names_folder(part: str) -> bool:
    size = len(part.encode("utf-8", "surrogatepass"))
    return 0 < size <= MAX_NAME and part not in (".", "..") and part.isprintable()


def _engines(config: Config) -> Iterator[str]:
    if config.engine.policy.own_process:
        yield (
            "engine.policy.own_process=true: acting episodes would wait for one another; leave it false (it is for "
            "a judge or a rewriter)"
        )
    needs = {
        "policy": max(config.rollout.max_response_tokens, config.evaluation.max_response_tokens),
        "reward": config.reward.max_response_tokens if config.reward.num_evaluation else 0,
        "rewriter": config.adaptation.max_response_tokens if config.adaptation.enabled else 0,
    }
    for role in ROLES:
        engine, need = config.engine.of(role), needs[role]
        if need >= engine.max_model_len:
            yield (
                f"engine.{role}.max_model_len: found {engine.max_model_len}, expected more than max_response_tokens "
                f"({need})"
            )
        if engine.kind == "transformers" and engine.tensor_parallel_size > 1:
            yield (
                f"engine.{role}.tensor_parallel_size={engine.tensor_parallel_size} with kind transformers: the small "
                "engine is one process; use kind=vllm, or tensor_parallel_size=1 and a larger num_replica"
            )


def _one_accelerator(config: Config, learns: bool) -> Iterator[str]:
    """A single accelerator holds all engines, and one learner after the other."""
    if not config.experiment.num_node == config.experiment.num_device == 1:
        return
    engines = {role: config.engine.of(role) for role in engine_roles(config, learns)}
    for role, engine in engines.items():
        if engine.num_replica > 1 or engine.tensor_parallel_size > 1:
            yield (
                f"engine.{role}.num_replica={engine.num_replica}, tensor_parallel_size={engine.tensor_parallel_size}: "
                "expected 1 and 1 on one accelerator; lower them, or raise experiment.num_device"
            )
    if learns and config.cluster.placement == "split":
        yield (
            "cluster.placement=split: one accelerator cannot be split between engines and learners; use colocated, or "
            "raise experiment.num_device"
        )
    if learns and config.cluster.num_learner > 1:
        yield (
            f"cluster.num_learner={config.cluster.num_learner}: expected at most 1 on one accelerator; lower it, or "
            "raise experiment.num_device"
        )
    shares = [engine.gpu_memory_utilization for engine in engines.values() if engine.kind == "vllm"]
    if sum(shares) >= 1:
        yield (
            f"engine.*.gpu_memory_utilization: {' + '.join(f'{s:g}' for s in shares)} of one accelerator; expected "
            "less than 1 together, with room for what each process needs besides (such as 0.3 each)"
        )


def _algorithm(config: Config) -> Iterator[str]:
    rollout, step_weight = config.rollout, config.algorithm.step_weight
    low, high = config.adaptation.alpha_low, config.adaptation.alpha_high
    if low >= high:
        yield f"adaptation.alpha_low, alpha_high: found {low}, {high}, expected alpha_low < alpha_high"
    if (rollout.top_p < 1 or rollout.top_k > 0) and not rollout.allow_biased_sampling:
        yield (
            f"rollout.top_p={rollout.top_p}, rollout.top_k={rollout.top_k}: the learner's logprobs are those of the "
            "whole distribution, so that training on such samples is biased; use top_p=1 top_k=0, or set "
            "rollout.allow_biased_sampling=true"
        )
    algorithm = config.algorithm
    if 0 < algorithm.overlong_limit < algorithm.overlong_buffer:
        yield (
            f"algorithm.overlong_limit={algorithm.overlong_limit}: less than algorithm.overlong_buffer="
            f"{algorithm.overlong_buffer}, so that the shortest episode would be penalised; lower the buffer"
        )
    if rollout.max_episode_tokens and rollout.history == "paper":
        yield (
            f"rollout.max_episode_tokens={rollout.max_episode_tokens}: prompts of rollout.history=paper do not grow; "
            "set it to 0, or history=append_only"
        )
    for role, training in _trainings(config):
        if 0 < training.dual_clip <= 1:
            yield (
                f"training.{role}.dual_clip={training.dual_clip:g}: expected more than 1, or 0 for none; such a bound "
                "would take the gradient from tokens that the update has not moved"
            )
    if algorithm.keep and not 1 < algorithm.keep < rollout.num_rollout_per_trial:
        yield (
            f"algorithm.keep={algorithm.keep}: expected at least 2 and fewer than rollout.num_rollout_per_trial="
            f"{rollout.num_rollout_per_trial}, or 0 to keep all"
        )
    if rollout.num_branch and rollout.num_rollout_per_trial - rollout.num_branch < rollout.min_group:
        yield (
            f"rollout.num_branch={rollout.num_branch} of rollout.num_rollout_per_trial="
            f"{rollout.num_rollout_per_trial}: fewer than rollout.min_group={rollout.min_group} would begin at the "
            "beginning, which a task's accuracy counts; lower it"
        )
    if rollout.num_branch and (algorithm.keep or algorithm.truncated == "drop"):
        left_out = f"algorithm.keep={algorithm.keep}" if algorithm.keep else "algorithm.truncated=drop"
        yield (
            f"{left_out}, rollout.num_branch={rollout.num_branch}: an episode that is left out would take those along "
            "that went on from it; give up one of them"
        )
    if rollout.num_rollout_per_trial < rollout.min_group:
        yield (
            f"rollout.num_rollout_per_trial={rollout.num_rollout_per_trial}: fewer than rollout.min_group="
            f"{rollout.min_group}, so that every task would be dropped; raise one or lower the other"
        )
    if config.reward.num_evaluation == 0 and step_weight != 0:
        yield (
            f"algorithm.step_weight={step_weight}: needs judgements, but reward.num_evaluation=0; "
            "set one of them otherwise (outcome only: reward.num_evaluation=0 algorithm.step_weight=0)"
        )


def _prompts(config: Config) -> Iterator[str]:
    rollout = config.rollout
    longest = max(rollout.max_interaction_step, config.evaluation.max_interaction_step)
    own = any(Path(config.dataset.prompt).glob("policy*.jinja"))
    if own and rollout.history != "paper" and longest > 1:
        yield (
            f"rollout.history={rollout.history}: the policy's template in dataset.prompt is rendered anew for every "
            "turn; set history=paper"
        )


def _trainings(config: Config) -> list[tuple[Learner, LearnerConfig]]:
    return [(role, config.training.of(role)) for role in learner_roles(config)]


def _stages(config: Config) -> Iterator[str]:
    """DeepSpeed supports offloading at ZeRO stages 1 to 3, and compilation at stages 0 to 2."""
    for role, training in _trainings(config):
        if training.offload and training.zero_stage == 0:
            yield (
                f"training.{role}.offload=true with zero_stage=0: DeepSpeed holds optimizer states on the host at "
                "stages 1 to 3; raise zero_stage, or set offload=false"
            )
        if training.compile and training.zero_stage == 3:
            yield (
                f"training.{role}.compile=true with zero_stage=3: DeepSpeed gathers weights within the layers that "
                "would be compiled; use zero_stage=2, or set compile=false"
            )


def _staleness(config: Config) -> Iterator[str]:
    """Rollouts that overlap updates need processes of their own, and a correction for their older weights."""
    if not config.rollout.max_staleness:
        return
    if not needs_cluster(config):
        yield (
            "rollout.max_staleness=1: one process cannot make tokens while it learns; expected 0, or processes of "
            "their own for engines and learners (engine.*.num_replica, cluster.num_learner, experiment.num_device)"
        )
    for role, training in _trainings(config):
        if training.old_logprobs == "learner" and training.importance_cap == 0:
            yield (
                f"training.{role}.importance_cap=0 with rollout.max_staleness=1: nothing would correct for the older "
                "weights that played; expected a cap such as 2, or old_logprobs=engine"
            )


def _sharing(config: Config) -> Iterator[str]:
    """Engines and learners that take turns with the same accelerators cannot work at the same time."""
    if config.cluster.placement != "colocated" or not config.experiment.num_device:
        return
    if config.rollout.max_staleness:
        yield (
            "rollout.max_staleness=1: accelerators that engines and learners share cannot do both at once; use "
            "cluster.placement=split"
        )
    if config.cluster.weight_transfer == "broadcast":
        yield (
            "cluster.weight_transfer=broadcast: NCCL wants an accelerator for each of its ends, and learners "
            "share theirs with engines; use weight_transfer=auto, or cluster.placement=split"
        )
    for role, training in _trainings(config):
        if training.zero_stage == 0:
            yield (
                f"training.{role}.zero_stage=0: cluster.placement=colocated hands accelerators over between engines "
                "and learners, which DeepSpeed can at stages 1 to 3; raise it, or use cluster.placement=split"
            )
        if training.zero_stage == 3 and training.lora_rank:
            yield (
                f"training.{role}.lora_rank with zero_stage=3: DeepSpeed cannot hand over an accelerator that holds "
                "frozen weights in shards; use zero_stage=2, or cluster.placement=split"
            )
