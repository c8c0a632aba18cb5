"""The learner trains a model on samples. It owns model, optimizer, schedule and random generator.

It drives a DeepSpeed engine directly. Weights, gradients and optimizer state are float32; the forward pass runs in
`config.dtype` under autocast. The ranks split the sets of samples among them; each merges and trains on its own.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import AutoTokenizer

from rlanything.config.schema import LearnerConfig, ModelConfig
from rlanything.errors import LearnerError
from rlanything.learner.adapters import adapters_disabled, add_adapters
from rlanything.learner.attention import FLEX_BLOCK
from rlanything.learner.distributed import engine_config, lr_factor, make_optimizer, start_deepspeed
from rlanything.learner.export import export, trained_weights
from rlanything.learner.loss import TokenBatch, policy_loss, supervised_loss
from rlanything.learner.model import TreeModel, initial_model
from rlanything.learner.packing import (
    MicroBatch,
    build_trees,
    pack,
    rank_shares,
    split_minibatches,
    token_counts,
    without_weight,
)
from rlanything.learner.state import ShardedState
from rlanything.types import Sample, SampleSet
from rlanything.weights.checksum import checksum, sealed, unsealed

STATE = "state.json"  # the file of a checkpoint that holds everything but tensors
# Two tokens for a rank that has no sample of its own in a minibatch.
BLANK = Sample(np.zeros(2, np.int64), np.array([0, 1], np.float32), np.zeros(2, np.float32), np.zeros(2, np.float32))
Micro = tuple[MicroBatch, TokenBatch]
Objective = Callable[[MicroBatch, TokenBatch, float], tuple[Tensor, dict[str, Tensor]]]


class Learner:
    """Trains one model. A process may have several learners.

    The schedule spans `total_update` optimizer steps. `temperature` is the sampling temperature, which divides the
    logits. DeepSpeed's log goes to `log_path`.

    Raises LearnerError if the temperature is not above 0, or the model cannot be trained (`TreeModel`).
    """

    def __init__(
        self,
        model: ModelConfig,
        config: LearnerConfig,
        total_update: int,
        temperature: float = 1.0,
        seed: int = 0,
        log_path: Path | None = None,
    ) -> None:
        if temperature <= 0:
            raise LearnerError(f"temperature: found {temperature}, expected the sampling temperature, above 0")
        self.config, self.total_update, self.temperature = config, total_update, temperature
        deepspeed = start_deepspeed(log_path)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device = torch.device(deepspeed.get_accelerator().current_device_name())
        self.on_gpu = self.device.type == "cuda"
        self.tokenizer = AutoTokenizer.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
        self.model = TreeModel(model, config, self.device)
        if config.lora_rank:
            frozen = self.model.vision.tower if self.model.vision and not config.train_vision else None
            add_adapters(self.model.lm, config.lora_rank, config.lora_alpha, seed, without=frozen)
        self.model.to(self.device).train()
        if config.gradient_checkpointing:
            self.model.lm.gradient_checkpointing_enable({"use_reentrant": False})
        if config.compile:
            self.model.compile_layers()
        self._reference: Any = None
        if config.kl_beta and config.kl_reference == "initial":
            self._reference = self._without_adapters if config.lora_rank else initial_model(model, config, self.device)
        self._bad_gradient = torch.zeros((), device=self.device)
        params = [p for p in self.model.parameters() if p.requires_grad]
        for parameter in params:
            parameter.register_hook(self._watch_gradient)
        optimizer = make_optimizer(params, config, self.on_gpu)
        self.engine, *_ = deepspeed.initialize(
            model=self.model, optimizer=optimizer, config=engine_config(config), dist_init_required=False
        )
        self._state = ShardedState(self.engine, self.model.lm, config, self.device)
        self._rng = np.random.default_rng(seed)
        self.num_updates = 0

    def _without_adapters(self, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """The initial model's forward pass, because the frozen weights are still the initial ones."""
        with adapters_disabled(self.model.lm):
            outputs: tuple[Tensor, Tensor] = self.engine(batch, temperature)
        return outputs

    def update(self, sets: Sequence[SampleSet]) -> dict[str, float]:
        """`train` on this rank's shares; every rank calls it with the same sets."""
        return self.train(self._own(sets))

    def shares(self, sets: Sequence[SampleSet]) -> list[list[list[int]]]:
        """The indices of the sets that each rank trains on in each of `num_update` minibatches: [minibatch][rank].

        Equal on all ranks, each of which must call it once before `train`. It reads no samples.
        """
        split = split_minibatches(sets, self.config.num_update, self._rng)
        return [rank_shares(minibatch, sets, self.world) for minibatch in split]

    def train(self, parts: Sequence[Sequence[Sequence[Sample]]]) -> dict[str, float]:
        """Train on `num_epoch` passes over this rank's samples of each minibatch: [minibatch][set][sample].

        Returns metrics: means over the minibatches, and counts of this rank's tokens. Raises LearnerError before the
        optimizer step is taken if the loss or a gradient is not finite.
        """
        config = self.config
        minibatches = self._packed(parts)
        learner_is_old = config.old_logprobs == "learner"
        kl_to_previous = config.kl_beta != 0 and config.kl_reference == "previous"

        def keep(tokens: TokenBatch, logprobs: Tensor) -> None:
            """Keep log-probabilities under the weights that sampled."""
            tokens.sampling = logprobs
            if learner_is_old:
                tokens.old = logprobs
            if kl_to_previous:
                tokens.reference = logprobs

        for i, micros in enumerate(minibatches):
            for batch, tokens in micros:
                # The first minibatch is trained before the weights change: its training pass gives these logprobs.
                if i > 0 and (learner_is_old or kl_to_previous):
                    keep(tokens, self._logprobs(self.engine, batch))
                if self._reference is not None:
                    tokens.reference = self._logprobs(self._reference, batch)
        first = [tokens for micros in minibatches[:1] for _, tokens in micros]

        def objective(batch: MicroBatch, tokens: TokenBatch, total_weight: float) -> tuple[Tensor, dict[str, Tensor]]:
            new, entropy = self.engine(batch, self.temperature)
            if tokens.sampling is None and tokens in first:
                keep(tokens, new.detach())
            return policy_loss(new, entropy, tokens, total_weight, config)

        return self._train(minibatches, objective)

    def update_supervised(self, sets: Sequence[SampleSet]) -> dict[str, float]:
        """Like `update` with cross-entropy at temperature 1 as the loss; advantages and logprobs are not read."""

        def objective(batch: MicroBatch, tokens: TokenBatch, total_weight: float) -> tuple[Tensor, dict[str, Tensor]]:
            new, entropy = self.engine(batch, 1.0)
            return supervised_loss(new, entropy, tokens.weights, total_weight)

        return self._train(self._packed(self._own(sets)), objective)

    @torch.no_grad()
    def supervised_loss(self, samples: Sequence[Sample]) -> float:
        """The mean cross-entropy of the samples' weighted tokens at temperature 1, without an update.

        Every rank is given the same samples.
        """
        total = weight = 0.0
        for batch in self._micro_batches(samples):
            weights = self._tokens(batch).weights
            total -= float((weights * self.engine(batch, 1.0)[0]).sum())
            weight += float(weights.sum())
        return total / weight

    def _own(self, sets: Sequence[SampleSet]) -> list[list[Sequence[Sample]]]:
        return [[sets[i].samples for i in of_rank[self.rank]] for of_rank in self.shares(sets)]

    def _packed(self, parts: Sequence[Sequence[Sequence[Sample]]]) -> list[list[Micro]]:
        """This rank's micro-batches of each minibatch: as many as on every other rank."""
        packed = [self._micro_batches([sample for samples in part for sample in samples]) for part in parts]
        most = torch.tensor([len(batches) for batches in packed], device=self.device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        for batches, num in zip(packed, most.tolist(), strict=True):
            spare = [] if len(batches) == num else [without_weight((batches or self._micro_batches([BLANK]))[0])]
            batches += spare * (num - len(batches))
        return [[(batch, self._tokens(batch)) for batch in batches] for batches in packed]

    def _micro_batches(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        limit = self.config.micro_batch_tokens
        patches = self.model.patches_per_token
        trees = build_trees(samples, limit, self.model.pairs_per_token, self.model.positions, patches)
        # FlexAttention skips masked blocks, so trees share one long row. A dense mask is cheapest in short rows.
        return pack(trees, limit, limit if self.on_gpu else 0, FLEX_BLOCK if self.on_gpu else 64, patches)

    def _tokens(self, batch: MicroBatch) -> TokenBatch:
        entries = batch.entries
        weights, advantages, engine = (
            torch.from_numpy(a).to(self.device) for a in (entries.weights, entries.advantages, entries.logprobs)
        )
        responses = torch.from_numpy(entries.samples).to(self.device)
        return TokenBatch(weights=weights, advantages=advantages, engine=engine, old=engine, responses=responses)

    @torch.no_grad()
    def _logprobs(self, model: Callable[[MicroBatch, float], tuple[Tensor, Tensor]], batch: MicroBatch) -> Tensor:
        return model(batch, self.temperature)[0]

    def _train(self, minibatches: list[list[Micro]], objective: Objective) -> dict[str, float]:
        start = time.perf_counter()
        updates = [self._step(m, objective) for _ in range(self.config.num_epoch) for m in minibatches]
        # Some minibatches lack some metrics: the mismatch needs log-probabilities under the sampling weights.
        names = dict.fromkeys(name for u in updates for name in u)
        metrics = {name: float(np.mean([u[name] for u in updates if name in u])) for name in names}
        if self.on_gpu:
            metrics["peak_gpu_memory_gb"] = torch.cuda.max_memory_reserved(self.device) / 2**30
        counts = token_counts([batch for micros in minibatches for batch, _ in micros])
        return metrics | {"num_update": float(len(updates))} | counts | {"train_s": time.perf_counter() - start}

    def _step(self, micros: list[Micro], objective: Objective) -> dict[str, float]:
        """Take one optimizer step and return its metrics, which are equal on all ranks."""
        local_weight = torch.tensor(sum(float(b.entries.weights.sum()) for b, _ in micros), device=self.device)
        dist.all_reduce(local_weight)
        total_weight = float(local_weight)
        sums: dict[str, Tensor] = {}
        self._bad_gradient.zero_()
        for batch, tokens in micros:
            loss, parts = objective(batch, tokens, total_weight)
            sums = {name: sums.get(name, 0) + value for name, value in parts.items()}
            self.engine.backward(loss * self.world)  # DeepSpeed averages gradients over the ranks
        values = torch.stack([*sums.values(), self._bad_gradient])
        dist.all_reduce(values)
        *totals, bad_gradient = values.tolist()
        metrics = dict(zip(sums, totals, strict=True))
        if bad_gradient or not math.isfinite(metrics["loss"]):
            self.engine.optimizer.zero_grad()
            what = "gradient" if math.isfinite(metrics["loss"]) else "loss"
            raise LearnerError(
                f"update {self.num_updates}: the {what} is not finite, no step was taken; metrics {metrics}. "
                "Look for extreme logprobs or advantages in the samples, or lower the learning rate"
            )
        lr = self.config.lr * lr_factor(self.num_updates, self.total_update, self.config)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = lr
        self.engine.step()
        self.num_updates += 1
        return metrics | {"grad_norm": float(self.engine.get_global_grad_norm()), "lr": lr}

    def _watch_gradient(self, grad: Tensor) -> None:
        # A sum with an infinite or nan term is not finite, and one number a parameter is cheap to read.
        self._bad_gradient += (~grad.sum().isfinite()).float()

    def weights(self, dtype: torch.dtype = torch.float32) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, tensor) of every weight that trains; every rank must iterate (`trained_weights`)."""
        return trained_weights(self.model.lm, self.config, dtype)

    def checksum(self, dtype: torch.dtype) -> str:
        """The checksum of the weights in an engine's `dtype`."""
        return checksum(self.weights(), dtype)

    def save(self, folder: Path) -> None:
        """Write all that `load` needs to continue exactly. STATE is written last: a folder without it is incomplete."""
        folder.mkdir(parents=True, exist_ok=True)
        self._state.save(folder)
        dist.barrier()
        if self.rank == 0:
            state = {"rng": self._rng.bit_generator.state, "num_updates": self.num_updates}
            (folder / STATE).write_text(sealed(state))
        dist.barrier()

    def load(self, folder: Path) -> None:
        """Continue from a `save` by any number of ranks at any ZeRO stage.

        Raises LearnerError if the folder holds no such state, ValueError if it is another model's or a file changed.
        """
        if not (folder / STATE).is_file():
            raise LearnerError(f"{folder}: found no learner state, expected the files that Learner.save writes")
        state = unsealed((folder / STATE).read_text())
        self._state.load(folder, state["num_updates"])
        self._rng.bit_generator.state, self.num_updates = state["rng"], state["num_updates"]

    def offload(self) -> None:
        """Move everything to the host, so that an engine can use the accelerator. ZeRO stages 1 to 3 only."""
        self._state.offload()
        self._move_frozen("cpu")
        if self.on_gpu:
            torch.cuda.empty_cache()

    def reload(self) -> None:
        """Move back what `offload` moved."""
        self._state.reload()
        self._move_frozen(self.device)

    def _move_frozen(self, device: torch.device | str) -> None:
        """Move the weights that no optimizer holds: DeepSpeed leaves them where they are."""
        reference = self._reference.parameters() if isinstance(self._reference, nn.Module) else ()
        for parameter in (*self.model.parameters(), *reference):
            if not parameter.requires_grad:
                held = getattr(parameter, "ds_tensor", parameter)  # ZeRO-3's shard
                held.data = held.data.to(device)

    def export(self, folder: Path) -> None:
        """Write model (adapters merged) and tokenizer in Hugging Face format; an older folder is replaced."""
        dtype = torch.float32 if self.config.export_dtype == "float32" else self.model.source_dtype
        export(folder, self.model.lm, self.tokenizer, self.config, dtype)

    def close(self) -> None:
        """Release the memory."""
        self.engine.destroy()
        if hasattr(self._reference, "destroy"):
            self._reference.destroy()
        del self.engine, self.model, self._reference, self._state
        gc.collect()  # hooks and the head's forward pass form reference cycles
        if self.on_gpu:
            torch.cuda.empty_cache()
