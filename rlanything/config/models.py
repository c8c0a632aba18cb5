"""Sections of the models, one of each for every role: weights, inference engine, training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from rlanything.config.section import Betas, Learner, PathText, PositiveShare, Role, Section


class ModelConfig(Section):
    """A model to load."""

    path: PathText = ""
    """Folder or hub name of a Hugging Face model with tokenizer and chat template. Empty if nothing uses this model."""
    trust_remote_code: bool = False
    """Execute the code that a model's repository brings."""


class ModelsConfig(Section):
    """The models of a run."""

    policy: ModelConfig = ModelConfig()
    """Model that acts."""
    reward: ModelConfig = ModelConfig()
    """Model that judges."""
    rewriter: ModelConfig = ModelConfig()
    """Model that rewrites tasks."""

    def of(self, role: Role) -> ModelConfig:
        """The model of a role."""
        return {"policy": self.policy, "reward": self.reward, "rewriter": self.rewriter}[role]


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
    enforce_eager: bool = False
    """Use neither CUDA graphs nor compilation. On a CPU it is always so."""
    own_process: bool = False
    """Run the engine of a judge or rewriter in its own process, on one CPU thread."""
    step_timeout_s: PositiveFloat = 600.0
    """A forward pass or weight transfer that takes longer hangs [s]. A replica is then restarted, and any other engine
    stops the run."""


class EnginesConfig(Section):
    """The engines of a run."""

    policy: EngineConfig = EngineConfig()
    """Engine of the policy."""
    reward: EngineConfig = EngineConfig()
    """Engine of the reward model."""
    rewriter: EngineConfig = EngineConfig()
    """Engine of the rewriter."""

    def of(self, role: Role) -> EngineConfig:
        """The engine of a role."""
        return {"policy": self.policy, "reward": self.reward, "rewriter": self.rewriter}[role]


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
    kl_beta: NonNegativeFloat = 0.01
    """Weight of the k3 KL divergence from the reference. 0 makes no reference pass."""
    kl_reference: Literal["initial", "previous"] = "initial"
    """Reference of the KL divergence: a frozen copy of the initial model, or the weights before this step's updates."""
    entropy_bonus: float = 0.0
    """Weight of the entropy in the objective."""
    loss_mean: Literal["response", "token"] = "response"
    """`response` gives every response the same weight, `token` every token."""
    old_logprobs: Literal["learner", "engine"] = "learner"
    """Where the logprobs before the updates come from: a pass of the learner, or the engine (no pass)."""
    importance_cap: NonNegativeFloat = 2.0
    """Highest importance weight of the learner's logprobs against the engine's. 0 corrects nothing."""
    micro_batch_tokens: PositiveInt = 8192
    """Packed tokens of one forward pass [tokens]."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Type of the forward pass, chosen as the engine's. Master weights are float32."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    """Stage of DeepSpeed ZeRO."""
    offload: bool = False
    """Keep the optimizer's state in the host's memory."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass, to save memory."""
    compile: bool = False
    """Compile every layer with torch.compile, which saves memory traffic on GPUs. ZeRO stages 0 to 2."""
    lora_rank: NonNegativeInt = 0
    """Rank of the LoRA adapters that are trained in place of the weights. 0 trains the weights."""
    lora_alpha: PositiveFloat = 32.0
    """Adapters are scaled by lora_alpha / lora_rank."""


class TrainingConfig(Section):
    """The learners of a run."""

    policy: LearnerConfig = LearnerConfig()
    """Training of the policy."""
    reward: LearnerConfig = LearnerConfig()
    """Training of the reward model."""

    def of(self, role: Learner) -> LearnerConfig:
        """The training of a role's model."""
        return {"policy": self.policy, "reward": self.reward}[role]
