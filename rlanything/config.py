"""The typed schema of every configuration key: default, unit and meaning stand beside each.

A YAML file is merged over these defaults, dotted overrides over the YAML; an unknown key, a wrong type or a
value outside its range fails here, before anything starts. The recipe's own words are kept (experiment,
model, dataset, rollout, training, evaluation, num_node, total_step, num_trial, ...).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

Schema = TypeVar("Schema")


class ConfigError(ValueError):
    """A configuration that cannot run: the message names the key, what was found and what is expected."""


@dataclass
class ExperimentConfig:
    name: str = MISSING  # the run's folder is <output_dir>/<name>
    output_dir: str = "runs"
    seed: int = 0
    num_node: int = 1  # machines that take part
    num_device: int = 0  # accelerators per machine; 0: the CPU
    total_step: int = 200  # steps of the loop; the learning-rate schedule spans them
    eval_every: int = 10  # steps between evaluations; 0: only before and after
    save_every: int = 10  # steps between checkpoints
    keep_checkpoint: int = 2  # newest checkpoints to keep
    resume: str = "auto"  # auto: go on from the newest checkpoint of this name; never: refuse a used folder
    sinks: list[str] = field(default_factory=list)  # besides metrics.jsonl: tensorboard, wandb, trackio
    num_thread: int = 0  # CPU threads of the process; 0: one per core


@dataclass
class ModelConfig:
    path: str = MISSING  # folder or hub name of a Hugging Face model with tokenizer and chat template
    trust_remote_code: bool = False


@dataclass
class ModelsConfig:
    policy: ModelConfig = field(default_factory=ModelConfig)
    reward: ModelConfig = field(default_factory=ModelConfig)
    rewriter: ModelConfig = field(default_factory=ModelConfig)


@dataclass
class EngineConfig:
    kind: str = "vllm"  # vllm | transformers
    dtype: str = "bfloat16"  # bfloat16 | float32
    max_model_len: int = 4096  # context, prompt and response together [tokens]
    max_num_seqs: int = 128  # sequences decoded together
    kv_cache_gb: float = 1.0  # KV cache on a CPU [GiB]
    gpu_memory_utilization: float = 0.85  # share of an accelerator's memory that vLLM may take
    tensor_parallel_size: int = 1
    enforce_eager: bool = False  # no CUDA graphs / compilation; always so on a CPU
    own_process: bool = False  # transformers: in a process of its own on one CPU thread, beside acting (for `reward`)
    step_timeout_s: float = 600.0  # a forward pass that takes longer hangs: the run stops and says so


@dataclass
class EnginesConfig:
    policy: EngineConfig = field(default_factory=EngineConfig)
    reward: EngineConfig = field(default_factory=EngineConfig)
    rewriter: EngineConfig = field(default_factory=EngineConfig)


@dataclass
class DatasetConfig:
    domain: str = "alfworld"  # alfworld
    backend: str = "simulator"  # ALFWorld: simulator | textworld (the real package)
    path: str = ""  # folder of games (json_2.1.1 layout), a packed .jsonl.xz, or "" for $ALFWORLD_DATA
    project: str = ""  # adapted games are written below <path>/json_2.1.1/<project>; "" for the run's name
    train_split: str = "train"
    num_task: int = 0  # use only so many training tasks (drawn with the seed); 0: all
    prompt: str = "full"  # full (explains the rules, for instruct models) | compact (for tiny models)
    show_actions: str = "all"  # ALFWorld prompts list all commands by number, those that act `here`, or none


@dataclass
class RolloutConfig:
    num_trial: int = 16  # tasks a step
    num_rollout_per_trial: int = 8  # episodes a task (k)
    max_interaction_step: int = 40  # turns an episode
    max_response_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    history: str = "append_only"  # append_only | paper
    allow_biased_sampling: bool = False  # permit top_p < 1 or top_k > 0 in training rollouts
    max_concurrent: int = 256  # episodes under way at once
    env_timeout_s: float = 60.0  # one reset or step of an environment
    num_retry: int = 2  # of an episode that the infrastructure broke
    min_group: int = 2  # a group with fewer valid episodes is dropped
    max_failure_rate: float = 0.25  # above it the run stops


@dataclass
class RewardConfig:
    num_evaluation: int = 3  # evaluations a turn (m); 0: no reward model
    max_response_tokens: int = 512
    temperature: float = 1.0
    outcome_weight: float = 1.0  # w_o
    step_weight: float = 1.0  # lambda
    step_discount: float = 0.0  # gamma: weight of the next step's signal in a step's own, for `separate`; 0: the paper
    advantage: str = "step_index"  # step_index | step_index_absorbing | separate | trajectory
    negative_weight: float = 1.0  # what advantages below 0 are multiplied by; 1: the paper
    policy_band: list[float] = field(default_factory=lambda: [0.125, 0.875])  # accuracies that train the policy
    reward_band: list[float] = field(default_factory=lambda: [0.2, 0.8])  # accuracies that train the RM
    consistency: str = "feedback"  # votes agree with R itself (feedback), or with R against the task's mean (relative)
    group: str = "step"  # baseline of the consistency feedback: step | task
    unparsable_reward: float = -3.0  # feedback of an evaluation without a score, before the z-score; below any vote


@dataclass
class AdaptationConfig:
    enabled: bool = True
    alpha_low: float = 0.2  # a task below it gets an easier variant
    alpha_high: float = 0.8  # a task above it gets a harder variant
    num_try: int = 8  # proposals sampled per task
    max_candidate: int = 4  # candidates drawn per step for a verdict, besides the num_trial active tasks
    max_response_tokens: int = 512
    temperature: float = 1.0


@dataclass
class LearnerConfig:
    lr: float = 1e-6
    schedule: str = "constant"  # constant | linear | cosine, over all updates of the training
    warmup_update: int = 0
    num_update: int = 4  # minibatches (optimizer steps) each pass over a step's samples is split into
    num_epoch: int = 1  # passes over a step's samples
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_beta: float = 0.01  # weight of the k3 KL; 0: no reference pass
    kl_reference: str = "initial"  # initial (a frozen copy) | previous (the weights before this step's updates)
    entropy_bonus: float = 0.0
    loss_mean: str = "response"  # response: every response weighs the same; token: every token
    old_logprobs: str = "learner"  # learner: one pass before the updates; engine: the engine's own (no pass)
    importance_cap: float = 2.0  # truncation of learner/engine importance weights; 0: no correction
    micro_batch_tokens: int = 8192  # packed tokens of one forward pass
    dtype: str = "bfloat16"  # of the forward pass; master weights are float32
    zero_stage: int = 0  # DeepSpeed ZeRO 0-3
    offload: bool = False  # optimizer state to the host
    gradient_checkpointing: bool = False


@dataclass
class TrainingConfig:
    policy: LearnerConfig = field(default_factory=LearnerConfig)
    reward: LearnerConfig = field(default_factory=LearnerConfig)


@dataclass
class EvaluationConfig:
    splits: list[str] = field(default_factory=lambda: ["eval_in_distribution", "eval_out_of_distribution"])
    num_task: int = 128  # tasks a split; 0: all
    num_rollout: int = 1  # episodes a task
    temperature: float = 1.0
    judge: bool = True  # also judge the episodes: RM accuracies on the policy's own rollouts


@dataclass
class Config:
    experiment: ExperimentConfig = field(default_factory=ExperimentConfig)
    model: ModelsConfig = field(default_factory=ModelsConfig)
    engine: EnginesConfig = field(default_factory=EnginesConfig)
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    adaptation: AdaptationConfig = field(default_factory=AdaptationConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    dry_run: bool = False


_CHOICES = {
    "experiment.resume": ("auto", "never"),
    "engine.{role}.kind": ("vllm", "transformers"),
    "engine.{role}.dtype": ("bfloat16", "float32"),
    "dataset.domain": ("alfworld",),
    "dataset.backend": ("simulator", "textworld"),
    "dataset.prompt": ("full", "compact"),
    "dataset.show_actions": ("all", "here", "none"),
    "rollout.history": ("append_only", "paper"),
    "reward.advantage": ("step_index", "step_index_absorbing", "separate", "trajectory"),
    "reward.consistency": ("feedback", "relative"),
    "reward.group": ("step", "task"),
    "training.{learner}.schedule": ("constant", "linear", "cosine"),
    "training.{learner}.kl_reference": ("initial", "previous"),
    "training.{learner}.loss_mean": ("response", "token"),
    "training.{learner}.old_logprobs": ("learner", "engine"),
    "training.{learner}.dtype": ("bfloat16", "float32"),
    "training.{learner}.zero_stage": (0, 1, 2, 3),
}
_POSITIVE = (
    "experiment.total_step",
    "experiment.num_node",
    "experiment.save_every",
    "experiment.keep_checkpoint",
    "engine.{role}.max_model_len",
    "engine.{role}.max_num_seqs",
    "engine.{role}.step_timeout_s",
    "rollout.num_trial",
    "rollout.num_rollout_per_trial",
    "rollout.max_interaction_step",
    "rollout.max_response_tokens",
    "rollout.temperature",
    "rollout.max_concurrent",
    "rollout.env_timeout_s",
    "training.{learner}.lr",
    "training.{learner}.num_update",
    "training.{learner}.num_epoch",
    "training.{learner}.max_grad_norm",
    "training.{learner}.micro_batch_tokens",
    "adaptation.num_try",
    "evaluation.num_rollout",
)


def load_config(argv: list[str]) -> Config:
    """The validated configuration of a command line. Raises ConfigError as `load_as` does."""
    config = load_as(Config, argv)
    validate(config)
    return config


def load_as(schema: type[Schema], argv: list[str]) -> Schema:
    """The configuration of a command line, `config=FILE.yaml key.sub=value ...`, merged over a schema's defaults.

    Raises ConfigError naming the key or file, what was found and what is expected.
    """
    if {"-h", "--help"} & set(argv):
        print("usage: python ENTRY_POINT.py config=FILE.yaml [key.sub=value ...]\n\nAll keys and their defaults:\n")
        print(OmegaConf.to_yaml(OmegaConf.structured(schema)))
        raise SystemExit(0)
    bare = [a for a in argv if "=" not in a]
    if bare:
        raise ConfigError(f"argument {bare[0]!r}: expected key=value, such as config=configs/alfworld_rl.yaml")
    files = [a.split("=", 1)[1] for a in argv if a.startswith("config=")]
    if len(files) != 1:
        raise ConfigError(f"expected exactly one config=FILE.yaml, found {len(files)}")
    merged = _merge(OmegaConf.structured(schema), _read_yaml(Path(files[0])), f"{files[0]}")
    overrides = [a for a in argv if not a.startswith("config=")]
    merged = _merge(merged, OmegaConf.from_dotlist(overrides), "the command line")
    missing = sorted(OmegaConf.missing_keys(merged))
    if missing:
        raise ConfigError(
            f"{missing[0]}: has no default and is not set in {files[0]}; add it there or pass {missing[0]}=..."
        )
    config = OmegaConf.to_object(merged)
    assert isinstance(config, schema)
    return config


def _read_yaml(path: Path) -> DictConfig:
    if not path.is_file():
        raise ConfigError(f"config={path}: there is no such file")
    try:
        loaded = OmegaConf.load(path)
    except Exception as error:  # OmegaConf passes on whatever its YAML parser raises
        raise ConfigError(f"config={path}: not valid YAML: {error}") from error
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"config={path}: expected a mapping of sections, found {type(loaded).__name__}")
    return loaded


def _merge(base: DictConfig, over: DictConfig, source: str) -> DictConfig:
    try:
        merged = OmegaConf.merge(base, over)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "?"
        cause = str(error).splitlines()[0]
        known = _siblings(base, key)
        hint = f"; known keys there: {', '.join(known)}" if known and "not in" in cause else ""
        raise ConfigError(f"{key} (from {source}): {cause}{hint}") from error
    assert isinstance(merged, DictConfig)
    return merged


def _siblings(base: DictConfig, key: str) -> list[str]:
    parent = OmegaConf.select(base, key.rpartition(".")[0]) if "." in key else base
    return sorted(map(str, parent)) if isinstance(parent, DictConfig) else []


def _expand(key: str) -> list[str]:
    if "{role}" in key:
        return [key.replace("{role}", r) for r in ("policy", "reward", "rewriter")]
    return [key.replace("{learner}", r) for r in ("policy", "reward")] if "{learner}" in key else [key]


def validate(config: Config) -> None:
    """Check what types cannot say. Raises ConfigError naming the key."""

    def value(key: str) -> object:
        node: object = config
        for part in key.split("."):
            node = getattr(node, part)
        return node

    for pattern, choices in _CHOICES.items():
        for key in _expand(pattern):
            if value(key) not in choices:
                raise ConfigError(f"{key}: found {value(key)!r}, expected one of {', '.join(map(str, choices))}")
    for pattern in _POSITIVE:
        for key in _expand(pattern):
            found = value(key)
            if not (isinstance(found, (int, float)) and found > 0):
                raise ConfigError(f"{key}: found {found!r}, expected a number above 0")
    for key in ("reward.policy_band", "reward.reward_band"):
        band = value(key)
        if not (isinstance(band, list) and len(band) == 2 and 0 <= band[0] <= band[1] <= 1):
            raise ConfigError(f"{key}: found {band!r}, expected [low, high] with 0 <= low <= high <= 1")
    adaptation, rollout, reward = config.adaptation, config.rollout, config.reward
    if not 0 <= adaptation.alpha_low < adaptation.alpha_high <= 1:
        raise ConfigError(
            f"adaptation.alpha_low, alpha_high: found {adaptation.alpha_low}, {adaptation.alpha_high}, "
            "expected 0 <= alpha_low < alpha_high <= 1"
        )
    if (rollout.top_p < 1 or rollout.top_k > 0) and not rollout.allow_biased_sampling:
        raise ConfigError(
            f"rollout.top_p={rollout.top_p}, rollout.top_k={rollout.top_k}: the learner's logprobs are those of the "
            "whole distribution, so training on such samples is biased; use top_p=1 top_k=0, or set "
            "rollout.allow_biased_sampling=true"
        )
    if reward.num_evaluation == 0 and reward.step_weight != 0:
        raise ConfigError(
            f"reward.step_weight={reward.step_weight}: needs evaluations, but reward.num_evaluation=0; "
            "set one of them otherwise (outcome only: reward.num_evaluation=0 reward.step_weight=0)"
        )
    if not (0 <= reward.step_discount <= 1 and (reward.step_discount == 0 or reward.advantage == "separate")):
        raise ConfigError(
            f"reward.step_discount={reward.step_discount}: expected a number from 0 to 1, and 0 unless "
            f"reward.advantage=separate (found {reward.advantage})"
        )
    if reward.negative_weight < 0:
        raise ConfigError(f"reward.negative_weight: found {reward.negative_weight}, expected a number of at least 0")
    for role in ("policy", "reward", "rewriter"):
        if value(f"engine.{role}.own_process") and value(f"engine.{role}.kind") != "transformers":
            raise ConfigError(f"engine.{role}.own_process=true: expected engine.{role}.kind=transformers beside it")
    for role, need in (("policy", rollout.max_response_tokens), ("reward", reward.max_response_tokens)):
        context = value(f"engine.{role}.max_model_len")
        if not (isinstance(context, int) and need < context):
            raise ConfigError(
                f"engine.{role}.max_model_len: found {context}, expected more than max_response_tokens ({need})"
            )
