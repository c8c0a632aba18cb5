"""The whole configuration of a run. Every section has a model whose fields hold type, bounds, default and meaning.

The recipe's own words are kept (experiment, model, dataset, rollout, training, num_node, total_step, num_trial, ...).
The algorithm is the paper's, arXiv 2602.02488.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from rlanything.config.cluster import ClusterConfig
from rlanything.config.sandbox import SandboxConfig
from rlanything.config.section import Band, Betas, ByRole, PathText, PositiveShare, Section, Share


class ExperimentConfig(Section):
    """The run: name, folder, machines, and when it evaluates and saves."""

    name: str = ""
    """Name of the run, which must be set. Its folder is `<output_dir>/<name>`."""
    output_dir: PathText = "runs"
    """Folder of all runs."""
    seed: NonNegativeInt = 0
    """Seed of every random draw."""
    num_node: PositiveInt = 1
    """Machines that take part."""
    num_device: NonNegativeInt = 0
    """Accelerators of each machine. 0 uses the CPU, even if there are accelerators."""
    device_memory_gb: PositiveFloat = 80.0
    """Memory of one accelerator, which the plan must fit into [GiB]."""
    total_step: PositiveInt = 200
    """Steps of the loop. The learning-rate schedule spans them."""
    eval_every: NonNegativeInt = 10
    """Steps between evaluations. 0 evaluates only before the first step and after the last."""
    save_every: PositiveInt = 10
    """Steps between checkpoints."""
    keep_checkpoint: PositiveInt = 2
    """Number of newest checkpoints to keep."""
    resume: Literal["auto", "never"] = "auto"
    """`auto` continues from the newest checkpoint of this name. `never` refuses a folder that holds a run."""
    sinks: list[Literal["tensorboard", "wandb", "trackio"]] = []
    """Services that get the figures besides metrics.jsonl."""
    num_thread: NonNegativeInt = 0
    """CPU threads of each process. 0 takes all cores if the run is one process, else one thread each."""


class ModelConfig(Section):
    """A model to load."""

    path: PathText = ""
    """Folder or hub name of a Hugging Face model with tokenizer and chat template. Empty if nothing uses this model."""
    trust_remote_code: bool = False
    """Execute the code that a model's repository brings."""


class ModelsConfig(ByRole[ModelConfig]):
    """The models of a run."""

    policy: ModelConfig = ModelConfig()
    reward: ModelConfig = ModelConfig()
    rewriter: ModelConfig = ModelConfig()


class EngineConfig(Section):
    """The inference engine of a role's model."""

    kind: Literal["vllm", "transformers"] = "vllm"
    """`transformers` is the small engine, which computes on the CPU even if there are accelerators."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Type of the weights. `auto` is bfloat16 if the hardware multiplies it, else float32."""
    max_model_len: PositiveInt = 4096
    """Longest context, prompt and response together [tokens]."""
    max_num_seqs: PositiveInt = 128
    """Sequences decoded together."""
    kv_cache_gb: PositiveFloat = 1.0
    """KV cache on a CPU [GiB]."""
    gpu_memory_utilization: PositiveShare = 0.85
    """Share of an accelerator's memory that vLLM may take."""
    tensor_parallel_size: PositiveInt = 1
    """Accelerators of one engine."""
    num_replica: PositiveInt = 1
    """Engines of this role, each with its own weights and KV cache."""
    max_images: PositiveInt = 8
    """Most images in one prompt, for models that read images."""
    enforce_eager: bool = False
    """Use neither CUDA graphs nor compilation. On a CPU it is always so."""
    own_process: bool = False
    """Run the engine of a judge or rewriter in its own process, on one CPU thread."""
    step_timeout_s: PositiveFloat = 600.0
    """A forward pass or weight transfer that takes longer hangs [s]. A replica is then restarted, and any other engine
    stops the run."""


class EnginesConfig(ByRole[EngineConfig]):
    """The engines of a run."""

    policy: EngineConfig = EngineConfig()
    reward: EngineConfig = EngineConfig()
    rewriter: EngineConfig = EngineConfig()


class DatasetConfig(Section):
    """The tasks: the domain, its data, and how much of it is used."""

    domain: str = "alfworld"
    """alfworld, coding, osworld, reasoning, gymnasium, openenv, verifiers, or a class of your own as module:Class."""
    options: dict[str, Any] = {}
    """Keys of the domain's own, which the domain checks."""
    path: PathText = ""
    """Folder of the domain's data: for ALFWorld `<split>.jsonl.xz` or `json_2.1.1/<split>/` (empty: $ALFWORLD_DATA),
    for coding `<split>.json`, for OSWorld the files that docs/osworld.md lists (empty: generated tasks)."""
    train_split: str = "train"
    """Split that the training tasks come from."""
    num_task: NonNegativeInt = 0
    """Number of training tasks to use, drawn with the seed. 0 uses all."""
    accuracy: PathText = ""
    """Folder of an evaluation of the training split, as `rlanything eval` writes them to `evaluations/`. Those tasks
    train that it holds with a success rate in `accuracy_band`. Empty takes all tasks."""
    accuracy_band: Band = [0.01, 0.99]
    """Success rates of tasks that train, bounds included, by `accuracy`."""
    prompt: PathText = "full"
    """`full` explains the rules, for instruct models. `compact` leaves them out, for tiny models. Else a folder with
    Jinja templates of your own: policy.jinja, judge.jinja, test.jinja, rewrite.jinja, or NAME.raw.jinja for texts that
    no chat template touches (docs/prompts.md)."""


class RolloutConfig(Section):
    """How the policy plays: tasks, episodes, sampling, and what happens to episodes that break."""

    num_trial: PositiveInt = 16
    """Tasks of a step. If there are fewer, all of them."""
    num_rollout_per_trial: PositiveInt = 8
    """Episodes of each task (k in the paper)."""
    num_branch: NonNegativeInt = 0
    """How many of these go on from a state of an earlier, unsolved one: that with the highest sum of step signals, or
    any if no judge scores steps. What led there is repeated, which costs no tokens; where the environment answers in
    another way, the policy goes on. If few episodes are solved, more of these are. `algorithm.advantage=segments` is
    made for it. 0 begins all at the beginning, as evaluations do."""
    max_interaction_step: PositiveInt = 40
    """Longest episode [turns]."""
    max_response_tokens: PositiveInt = 512
    """Longest response of a turn [tokens]."""
    max_episode_tokens: NonNegativeInt = 0
    """Longest episode [tokens after the first prompt], if `history` is append_only; it then ends as truncated. 0 sets
    no limit but the context's."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature."""
    top_p: PositiveShare = 1.0
    """Sample from the likeliest tokens that have this probability together. 1 samples from all."""
    top_k: NonNegativeInt = 0
    """Sample from this many likeliest tokens. 0 samples from all."""
    history: Literal["append_only", "paper"] = "append_only"
    """`append_only` keeps one growing conversation, so that an episode trains in one forward pass. `paper` renders each
    turn's prompt anew, as the paper's code does."""
    allow_biased_sampling: bool = False
    """Permit `top_p < 1` or `top_k > 0` in training, although the learner's logprobs are those of all tokens."""
    max_staleness: Annotated[int, Field(ge=0, le=1)] = 0
    """1 plays a step's episodes during the updates of the step before, with the weights before those updates."""
    max_concurrent: PositiveInt = 256
    """Episodes in progress at once."""
    env_timeout_s: PositiveFloat = 180.0
    """Longest reset or step of an environment [s]. TextWorld's episodes take turns, and waiting counts."""
    num_retry: NonNegativeInt = 2
    """How often an episode that the infrastructure broke is played again."""
    min_group: PositiveInt = 2
    """A task with fewer valid episodes is dropped from the step."""
    max_failure_rate: Share = 0.25
    """Share of broken episodes above which the run stops."""


class AlgorithmConfig(Section):
    """The policy's algorithm: the advantage of every turn, and the tasks that train."""

    advantage: str = "step_index"
    """Advantage rule: step_index (the paper's), step_index_absorbing, separate, process, trajectory (GRPO),
    leave_one_out, same_state, grouped_gae, segments, or a function of yours as module:function."""
    options: dict[str, Any] = {}
    """Keyword arguments of the advantage rule."""
    reward: Literal["outcome", "score"] = "outcome"
    """Reward of an episode: `outcome` is +1 or -1, `score` is the environment's own number."""
    call_bonus: float = 0.0
    """Reward of each turn with a call that is executed. Below 0 it is the price of a call."""
    call_bonus_max: NonNegativeFloat = 0.4
    """Most that calls earn or cost in an episode."""
    call_bonus_on: Literal["wrong", "all"] = "wrong"
    """Episodes whose calls count: those that failed, or all."""
    overlong_limit: NonNegativeInt = 0
    """Tokens after the first prompt, tool output included, at which the penalty is full. 0 penalises no length."""
    overlong_buffer: PositiveInt = 4096
    """Tokens before the limit from which on the penalty grows [tokens]."""
    overlong_penalty: NonNegativeFloat = 1.0
    """The penalty at the limit; beyond it, it goes on growing."""
    turn_cost: NonNegativeFloat = 0.0
    """Price of each turn of a solved episode. Where the state at the end decides, whoever ends the episode, a policy
    learns never to end one unless turns cost something. Failures pay nothing, because it would learn to give up."""
    outcome_weight: NonNegativeFloat = 1.0
    """Weight of the episode's reward in the integrated feedback (w_o in the paper)."""
    step_weight: NonNegativeFloat = 1.0
    """Weight of the step signal in the integrated feedback (lambda in the paper)."""
    negative_weight: NonNegativeFloat = 1.0
    """Factor of the advantages below 0. 1 is the paper's."""
    truncated: Literal["grade", "wrong", "drop"] = "grade"
    """Episodes that a limit ended: graded as they stand, rewarded as failures, or left out of baselines and updates.
    A task's accuracy, by which it trains and adapts, always counts them as graded."""
    void: Literal["train", "mask"] = "train"
    """Episodes in which a response held no action: trained like others, or counted in the baselines alone."""
    keep: NonNegativeInt = 0
    """Episodes of a group that the policy learns from, if more were played: solved ones in their share, those with the
    fewest faulty turns (GRPO-RoC). 0 keeps all."""
    band: Band = [0.125, 0.875]
    """The policy trains on tasks whose accuracy lies in this band, bounds included."""


class RewardConfig(Section):
    """The reward model: its evaluations, and the feedback that it trains on."""

    num_evaluation: NonNegativeInt = 3
    """Evaluations of each turn (m in the paper), unit tests of each task, or with `judge: measured` continuations from
    each state. 0 uses no reward model."""
    judge: Literal["model", "label", "measured"] = "model"
    """`label` puts the domain's own step labels in the reward model's place, for analysis: what could a perfect judge
    teach? `measured` puts the change of the chance of success there, measured by `num_evaluation` continuations from
    each state that an episode reached: what could a judge of a step's worth teach? It costs many times the rollout, in
    evaluations too (`evaluation.judge`), and needs an environment that does the same again. With both no reward model
    is loaded, and the reward model's figures are those of the labels or of the measurement."""
    label_noise: Share = 0.0
    """Chance that an evaluation by `label` is flipped."""
    trained: bool = True
    """False judges with the reward model as it is and trains the policy alone, to tell what training the judge brings.
    """
    max_response_tokens: PositiveInt = 512
    """Longest evaluation [tokens]."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature."""
    top_p: PositiveShare = 1.0
    """Sample from the likeliest tokens that have this probability together. 1 samples from all. Below 1 the reward
    model's training is biased, as the policy's is by `rollout.top_p`."""
    consistency: Literal["feedback", "relative", "worth", "tests"] = "feedback"
    """The reward of a judgement. `feedback`: agreement with the integrated feedback R (the paper). `relative`:
    agreement with R against its mean over the task. `worth`: agreement with what the turn's segment changed in the
    chance of success, as the tree of the task's episodes tells (`rollout.num_branch`). `tests`, for coding: a unit test
    earns the wrong programs that it tells from the correct ones (the paper)."""
    step_tests: Literal["valid_only", "all"] = "valid_only"
    """Unit tests that count in the step signal of coding: those that every correct program passes, or all."""
    group: Literal["step", "index", "task"] = "step"
    """Evaluations that share a baseline: those of one step (the paper), of the steps with the same index in a
    task's episodes, or of the whole task."""
    unparsable_reward: float = -3.0
    """Feedback of an evaluation without a score, before the z-score. It should be below that of any vote."""
    band: Band = [0.2, 0.8]
    """The reward model trains on tasks whose accuracy lies in this band, bounds included."""


class AdaptationConfig(Section):
    """The adaptation of tasks to the policy's ability."""

    enabled: bool = True
    """Have the rewriter propose variants of tasks."""
    alpha_low: Share = 0.2
    """A task whose accuracy is below gets an easier variant."""
    alpha_high: Share = 0.8
    """A task whose accuracy is above gets a harder variant."""
    num_try: PositiveInt = 8
    """Proposals sampled for each task."""
    max_candidate: NonNegativeInt = 4
    """Candidates that a step plays for a verdict, besides its num_trial active tasks."""
    revisit: Share = 0.0
    """Largest share of a step's num_trial tasks that are visited again: variants of which some episodes were solved at
    their last visit, but not all, the longest-waiting first. The other tasks are drawn in rotation, each once before
    any again, as in the paper. If few originals are ever solved, a rotation spends most episodes on tasks that teach
    nothing."""
    train_dropped: bool = True
    """Train on the episodes of candidates that were dropped, too, if their accuracy is within the bands. The published
    code does not."""
    max_response_tokens: PositiveInt = 512
    """Longest proposal [tokens]."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature."""


class LearnerConfig(Section):
    """The training of a role's model."""

    lr: PositiveFloat = 1e-6
    """Learning rate at its highest."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate over all updates of the training."""
    warmup_update: NonNegativeInt = 0
    """Updates over which the learning rate rises from 0."""
    num_update: PositiveInt = 4
    """Minibatches (optimizer steps) that each pass over a step's samples is split into."""
    num_epoch: PositiveInt = 1
    """Passes over a step's samples."""
    betas: Betas = [0.9, 0.95]
    """Adam's decay rates of the two moments."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay (AdamW)."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradients are scaled down to this norm."""
    clip_low: NonNegativeFloat = 0.2
    """The surrogate objective clips probability ratios below 1 - clip_low."""
    clip_high: NonNegativeFloat = 0.2
    """The surrogate objective clips probability ratios above 1 + clip_high."""
    ratio: Literal["token", "response"] = "token"
    """Probability ratios of the surrogate objective: each token's own, or for all tokens of a response the geometric
    mean of theirs (GSPO), which wants clip_low and clip_high near 0.0003."""
    dual_clip: NonNegativeFloat = 0.0
    """The surrogate objective of a token with a negative advantage is never worse than this many times the advantage
    (dual clip), however much likelier the token has become. 0 sets no bound; else above 1."""
    kl_beta: NonNegativeFloat = 0.01
    """Weight of the k3 KL divergence from the reference. 0 makes no reference pass."""
    kl_reference: Literal["initial", "previous"] = "initial"
    """Reference of the KL divergence: a frozen copy of the initial model, or the weights before this step's updates."""
    entropy_bonus: float = 0.0
    """Weight of the entropy in the objective."""
    loss_mean: Literal["response", "token"] = "response"
    """`response` gives every response the same weight, `token` every token."""
    old_logprobs: Literal["learner", "engine"] = "learner"
    """The source of the logprobs before the updates: a pass of the learner, or the engine (no pass)."""
    importance_cap: NonNegativeFloat = 2.0
    """Highest importance weight of the learner's logprobs against the engine's. 0 corrects nothing."""
    micro_batch_tokens: PositiveInt = 8192
    """Packed tokens of one forward pass [tokens]. With `train_vision` its images have at most so many patches, too."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Type of the forward pass, chosen as the engine's. Master weights are float32."""
    export_dtype: Literal["model", "float32"] = "model"
    """Type of the weights that checkpoints export in Hugging Face format: that of the model's files, or float32."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    """Stage of DeepSpeed ZeRO."""
    offload: bool = False
    """Keep the optimizer's state in the host's memory."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass, to save memory."""
    compile: bool = False
    """Compile every layer with torch.compile, which saves memory traffic on GPUs. ZeRO stages 0 to 2."""
    train_vision: bool = True
    """Train the vision tower of a model that reads images. If not, it stays as it is in the model's files."""
    lora_rank: NonNegativeInt = 0
    """Rank of the LoRA adapters that are trained in place of the weights. 0 trains the weights."""
    lora_alpha: PositiveFloat = 32.0
    """Adapters are scaled by lora_alpha / lora_rank."""


class TrainingConfig(ByRole[LearnerConfig]):
    """The learners of a run."""

    policy: LearnerConfig = LearnerConfig()
    reward: LearnerConfig = LearnerConfig()


class EvaluationConfig(Section):
    """How the policy is measured, during a training or by itself."""

    splits: list[str] = ["eval_in_distribution", "eval_out_of_distribution"]
    """Splits to measure on."""
    num_task: NonNegativeInt = 128
    """Tasks of each split. 0 takes all."""
    num_rollout: PositiveInt = 1
    """Episodes of each task."""
    max_interaction_step: NonNegativeInt = 0
    """Longest episode [turns]. 0 takes the rollout's."""
    max_response_tokens: NonNegativeInt = 0
    """Longest response of a turn [tokens]. 0 takes the rollout's."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature. 0 takes the likeliest token."""
    top_p: PositiveShare = 1.0
    """Sample from the likeliest tokens that have this probability together. 1 samples from all."""
    judge: bool = True
    """Have the reward model judge these episodes, to measure it on the policy's own."""


class Config(Section):
    """Everything that a run depends on."""

    experiment: ExperimentConfig = ExperimentConfig()
    model: ModelsConfig = ModelsConfig()
    engine: EnginesConfig = EnginesConfig()
    dataset: DatasetConfig = DatasetConfig()
    sandbox: SandboxConfig = SandboxConfig()
    rollout: RolloutConfig = RolloutConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    reward: RewardConfig = RewardConfig()
    adaptation: AdaptationConfig = AdaptationConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    cluster: ClusterConfig = ClusterConfig()
    dry_run: bool = False
    """Print the resolved configuration and the plan, and start nothing."""
