"""The typed schema of every configuration key: default, unit and meaning stand beside each.

`load.py` merges a YAML file over these defaults and dotted overrides over the YAML; `rules.py` says which values are
allowed. The recipe's own words are kept (experiment, model, dataset, rollout, training, evaluation, num_node,
total_step, num_trial, ...).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from rlanything.errors import ConfigError as ConfigError


class _Temp:
    def model_copy(self, update):
        from dataclasses import replace

        return replace(self, **update)

    def of(self, role):
        return getattr(self, role)


@dataclass
class ExperimentConfig(_Temp):
    name: str = MISSING  # the run's folder is <output_dir>/<name>
    output_dir: str = "runs"
    seed: int = 0
    num_node: int = 1  # machines that take part
    num_device: int = 0  # accelerators per machine; 0: the CPU, even where there are some
    device_memory_gb: float = 80.0  # of one accelerator: what the plan must fit into [GiB]
    total_step: int = 200  # steps of the loop; the learning-rate schedule spans them
    eval_every: int = 10  # steps between evaluations; 0: only before and after
    save_every: int = 10  # steps between checkpoints
    keep_checkpoint: int = 2  # newest checkpoints to keep
    resume: str = "auto"  # auto: go on from the newest checkpoint of this name; never: refuse a used folder
    sinks: list[str] = field(default_factory=list)  # besides metrics.jsonl: tensorboard, wandb, trackio
    num_thread: int = 0  # CPU threads of each process; 0: where there is one, its cores, else one


@dataclass
class ModelConfig(_Temp):
    path: str = MISSING  # folder or hub name of a Hugging Face model with tokenizer and chat template
    trust_remote_code: bool = False


@dataclass
class ModelsConfig(_Temp):
    policy: ModelConfig = field(default_factory=ModelConfig)
    reward: ModelConfig = field(default_factory=ModelConfig)
    rewriter: ModelConfig = field(default_factory=ModelConfig)


@dataclass
class EngineConfig(_Temp):
    kind: str = "vllm"  # vllm | transformers (our small engine: on the CPU, whatever accelerators there are)
    dtype: str = "auto"  # bfloat16 | float32 | auto: bfloat16 where the hardware multiplies it
    max_model_len: int = 4096  # context, prompt and response together [tokens]
    max_num_seqs: int = 128  # sequences decoded together
    kv_cache_gb: float = 1.0  # KV cache on a CPU [GiB]
    gpu_memory_utilization: float = 0.85  # share of an accelerator's memory that vLLM may take
    tensor_parallel_size: int = 1  # accelerators of one engine
    num_replica: int = 1  # engines of this role, each with weights and KV cache of its own
    enforce_eager: bool = False  # no CUDA graphs / compilation; always so on a CPU
    own_process: bool = False  # small engine of a judge or rewriter: in a process of its own, on one CPU thread
    step_timeout_s: float = 600.0  # a forward pass or transfer of weights that takes longer hangs: a replica is started
    # anew, as where it does not answer for so long; otherwise the run stops and says so


@dataclass
class EnginesConfig(_Temp):
    policy: EngineConfig = field(default_factory=EngineConfig)
    reward: EngineConfig = field(default_factory=EngineConfig)
    rewriter: EngineConfig = field(default_factory=EngineConfig)


@dataclass
class DatasetConfig(_Temp):
    domain: str = "alfworld"  # alfworld | coding
    options: dict[str, Any] = field(default_factory=dict)
    path: str = ""
    train_split: str = "train"
    num_task: int = 0
    prompt: str = "full"


@dataclass
class SandboxConfig(_Temp):
    allow_unisolated: bool = False  # execute programs even where they cannot be isolated
    num_runner: int = 0  # executions at once in each process that plays episodes; 0: two a core
    wall_factor: float = 5.0  # a program is killed after so many times its problem's processor time, and a second
    memory_mb: int = 512  # of a program [MiB]
    output_mb: int = 16  # that a program may write [MiB]
    num_thread: int = 32  # of a program


@dataclass
class RolloutConfig(_Temp):
    num_trial: int = 16  # tasks a step (all, where there are fewer)
    num_rollout_per_trial: int = 8  # episodes a task (k)
    max_interaction_step: int = 40  # turns an episode
    max_response_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    history: str = "append_only"  # append_only | paper
    allow_biased_sampling: bool = False  # permit top_p < 1 or top_k > 0 in training rollouts
    max_staleness: int = 0  # 1: a step's rollouts overlap the updates of the step before, with the weights before those
    max_concurrent: int = 256  # episodes under way at once
    env_timeout_s: float = 60.0  # one reset or step; TextWorld's episodes take turns, and waiting counts
    num_retry: int = 2  # of an episode that the infrastructure broke
    min_group: int = 2  # a group with fewer valid episodes is dropped
    max_failure_rate: float = 0.25  # above it the run stops


@dataclass
class RewardConfig(_Temp):
    num_evaluation: int = 3  # evaluations a turn (m); 0: no reward model
    max_response_tokens: int = 512
    temperature: float = 1.0
    band: list[float] = field(default_factory=lambda: [0.2, 0.8])  # accuracies that train the RM
    consistency: str = "feedback"  # votes agree with R itself (feedback), or with R against the task's mean (relative);
    # coding: a unit test earns the wrong programs that it tells from the correct ones (tests: the paper)
    step_tests: str = "valid_only"  # coding: unit tests that count in R: those that correct programs pass, or all
    group: str = "step"  # baseline of the consistency feedback: step | task
    unparsable_reward: float = -3.0  # feedback of an evaluation without a score, before the z-score; below any vote


@dataclass
class AlgorithmConfig(_Temp):
    advantage: str = "step_index"
    options: dict[str, Any] = field(default_factory=dict)
    reward: str = "outcome"
    outcome_weight: float = 1.0
    step_weight: float = 1.0
    negative_weight: float = 1.0
    band: list[float] = field(default_factory=lambda: [0.125, 0.875])


@dataclass
class AdaptationConfig(_Temp):
    enabled: bool = True
    alpha_low: float = 0.2  # a task below it gets an easier variant
    alpha_high: float = 0.8  # a task above it gets a harder variant
    num_try: int = 8  # proposals sampled per task
    max_candidate: int = 4  # candidates drawn per step for a verdict, besides the num_trial active tasks
    max_response_tokens: int = 512
    temperature: float = 1.0


@dataclass
class LearnerConfig(_Temp):
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
    dtype: str = "auto"  # as an engine's, of the forward pass; master weights are float32
    zero_stage: int = 0  # DeepSpeed ZeRO 0-3
    offload: bool = False  # optimizer state to the host
    gradient_checkpointing: bool = False
    compile: bool = False  # torch.compile of every layer: for GPUs, where it spares memory traffic; ZeRO 0-2
    lora_rank: int = 0  # rank of the adapters that train in the weights' stead (LoRA); 0: the weights train
    lora_alpha: float = 32.0  # the adapters count lora_alpha / lora_rank times


@dataclass
class TrainingConfig(_Temp):
    policy: LearnerConfig = field(default_factory=LearnerConfig)
    reward: LearnerConfig = field(default_factory=LearnerConfig)


@dataclass
class EvaluationConfig(_Temp):
    splits: list[str] = field(default_factory=lambda: ["eval_in_distribution", "eval_out_of_distribution"])
    num_task: int = 128  # tasks a split; 0: all
    num_rollout: int = 1  # episodes a task
    temperature: float = 1.0
    judge: bool = True  # also judge the episodes: RM accuracies on the policy's own rollouts


@dataclass
class ClusterConfig(_Temp):
    placement: str = (
        "colocated"  # colocated: accelerators serve, then learn | split: each (of several) does one of them
    )
    num_learner: int = 0  # ranks that train the models together; 0: one an accelerator, or one on CPUs
    num_env_host: int = 0  # processes that hold the episodes; 0: one a node
    num_restart: int = 3  # of each engine or host that died, over the whole run
    weight_transfer: str = "auto"  # store (shared memory; LoRA's always) | what is straight, and the store for replicas
    # that miss it: broadcast (NCCL or gloo), ipc (CUDA IPC, or shared memory: from the learner rank beside an engine)
    # | auto: with vLLM on accelerators ipc where learners share all of them, broadcast where none
    join_timeout_s: float = 600.0  # for `num_node` machines to join
    rank_timeout_s: float = 1800.0  # for a learner rank to take part in what all ranks do together
    restart_timeout_s: float = 1800.0  # for an engine to start, or a host or engine that died to answer again


@dataclass
class Config(_Temp):
    experiment: ExperimentConfig = field(default_factory=ExperimentConfig)
    model: ModelsConfig = field(default_factory=ModelsConfig)
    engine: EnginesConfig = field(default_factory=EnginesConfig)
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    adaptation: AdaptationConfig = field(default_factory=AdaptationConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    dry_run: bool = False
