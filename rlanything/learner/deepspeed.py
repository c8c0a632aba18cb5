"""The learner: samples in, new weights out. Owns model, optimizer, schedule and RNG from step to step.

A DeepSpeed engine is driven directly. Weights, gradients and optimizer state are float32, the forward pass runs in
`config.dtype` under autocast. With several ranks every rank calls `update` with the same samples and takes its share
of the micro-batches.
"""

from __future__ import annotations

import gc
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoTokenizer

from rlanything.config.schema import LearnerConfig, ModelConfig
from rlanything.errors import LearnerError
from rlanything.learner.adapters import adapters, add_adapters, frozen, without_adapters
from rlanything.learner.attention import FLEX_BLOCK
from rlanything.learner.distributed import engine_config, partitioned, start_deepspeed
from rlanything.learner.loss import TokenBatch, policy_loss, supervised_loss
from rlanything.learner.model import TreeModel
from rlanything.learner.optimizer import ClippedAdamW, lr_factor
from rlanything.learner.packing import MicroBatch, build_trees, pack, packing_ratio, split_minibatches
from rlanything.learner.state import ShardedState
from rlanything.types import Sample
from rlanything.weights.checksum import checksum, sealed, unsealed
from rlanything.weights.lora import merged
from rlanything.weights.precision import torch_dtype

STATE = "state.json"  # what a checkpoint holds besides the tensors


@dataclass(eq=False)
class _Micro:
    """A micro-batch with the log-probabilities [E] that passes before the updates gave it."""

    batch: MicroBatch
    old: Tensor | None = None
    reference: Tensor | None = None
    sampled_by_these_weights: bool = False  # whether `old` is of the weights that the samples were drawn with


Objective = Callable[[_Micro, float], tuple[Tensor, dict[str, Tensor]]]


class Learner:
    """Trains one model. Several live in one process (policy and reward model).

    `total_update` is the number of optimizer steps that the schedule spans, `temperature` the sampling temperature by
    which logits are divided, `log_path` the file that takes DeepSpeed's log.
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
            raise LearnerError(f"temperature {temperature}: the learner needs the sampling temperature, above 0")
        self.config, self.total_update, self.temperature = config, total_update, temperature
        deepspeed = start_deepspeed(log_path)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device = torch.device(deepspeed.get_accelerator().current_device_name())
        self.tokenizer = AutoTokenizer.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
        dtype = torch_dtype(config.dtype, self.device.type != "cpu")
        with partitioned(config):
            entropy_gradient, in_parts = config.entropy_bonus != 0, config.zero_stage == 3
            self.model = TreeModel(model, dtype, self.device, entropy_gradient, config.lora_rank > 0, in_parts)
        if config.lora_rank:
            add_adapters(self.model.lm, config.lora_rank, config.lora_alpha, seed)
        self.model.to(self.device).train()
        if config.gradient_checkpointing:
            self.model.lm.gradient_checkpointing_enable({"use_reentrant": False})
        if config.compile:
            self.model.compile_layers()
        self._reference: Any = None
        if config.kl_beta and config.kl_reference == "initial" and config.lora_rank:
            self._reference = self._frozen
        elif config.kl_beta and config.kl_reference == "initial":
            # Float32 like the trained model, so that before the first update the KL is 0 and not rounding noise.
            with partitioned(config):
                reference = TreeModel(model, dtype, self.device, entropy_gradient=False, partitioned=in_parts)
                self._reference = reference.to(self.device)
            self._reference.requires_grad_(False)
            if config.zero_stage == 3:  # partitioned like the trained model: whole it may not fit beside it
                zero = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
                self._reference, *_ = deepspeed.initialize(model=self._reference, config=zero, dist_init_required=False)
        self._bad_gradient = torch.zeros((), device=self.device)
        params = [p for p in self.model.parameters() if p.requires_grad]
        for parameter in params:
            parameter.register_hook(self._watch_gradient)
        options: dict[str, Any] = {"lr": config.lr, "betas": tuple(config.betas), "weight_decay": config.weight_decay}
        options["fused"] = self.device.type == "cuda" and not config.offload  # one pass over memory, not about twenty
        optimizer = (
            torch.optim.AdamW(params, **options)
            if config.zero_stage
            else ClippedAdamW(params, config.max_grad_norm, **options)
        )
        self.engine, *_ = deepspeed.initialize(
            model=self.model, optimizer=optimizer, config=engine_config(config), dist_init_required=False
        )
        self._gathered = deepspeed.zero.GatheredParameters
        self._rng = np.random.default_rng(seed)
        self.num_updates = 0

    def update(self, samples: Sequence[Sample]) -> dict[str, float]:
        """num_epoch passes of num_update minibatches over the samples; metrics are means over the minibatches.

        Raises LearnerError on a loss or gradient that is not finite, before the optimizer step is taken.
        """
        config = self.config
        minibatches = self._minibatches(samples)
        use_old = config.old_logprobs == "learner"
        previous = config.kl_beta != 0 and config.kl_reference == "previous"
        for i, micros in enumerate(minibatches):
            for micro in micros:
                # The first minibatch meets the very weights that its old log-probabilities are of: no pass needed.
                if i > 0 and (use_old or previous):
                    micro.old = self._logprobs(self.engine, micro.batch)
                    micro.sampled_by_these_weights = True
                if self._reference is not None:
                    micro.reference = self._logprobs(self._reference, micro.batch)

        def objective(micro: _Micro, total_weight: float) -> tuple[Tensor, dict[str, Tensor]]:
            new, entropy = self.engine(micro.batch, self.temperature)
            if micro.old is None:
                micro.old = new.detach()
                # Of a later minibatch that no pass has met, the weights have moved on since it was sampled.
                micro.sampled_by_these_weights = micro in minibatches[0]
            weights, advantages, sampled = (
                torch.from_numpy(a).to(self.device)
                for a in (micro.batch.entries.weights, micro.batch.entries.advantages, micro.batch.entries.logprobs)
            )
            tokens = TokenBatch(
                weights=weights,
                advantages=advantages,
                old=micro.old if use_old else sampled,
                engine=sampled,
                reference=micro.old if previous else micro.reference,
                before=micro.old if micro.sampled_by_these_weights else None,
            )
            return policy_loss(new, entropy, tokens, total_weight, config)

        return self._train(minibatches, objective)

    def update_supervised(self, samples: Sequence[Sample]) -> dict[str, float]:
        """The same passes with cross-entropy (at temperature 1) for a loss; advantages and logprobs are not read."""

        def objective(micro: _Micro, total_weight: float) -> tuple[Tensor, dict[str, Tensor]]:
            new, entropy = self.engine(micro.batch, 1.0)
            weights = torch.from_numpy(micro.batch.entries.weights).to(self.device)
            return supervised_loss(new, entropy, weights, total_weight)

        return self._train(self._minibatches(samples), objective)

    def _minibatches(self, samples: Sequence[Sample]) -> list[list[_Micro]]:
        trained = [s for s in samples if s.weights.any()]
        limit = self.config.micro_batch_tokens
        on_gpu = self.device.type == "cuda"
        packed = []
        for part in split_minibatches(trained, self.config.num_update, self._rng):
            trees = build_trees(part, limit, self.model.pairs_per_token)
            # FlexAttention skips masked blocks: one long row without padding. A dense mask wants short rows.
            batches = pack(trees, limit, limit if on_gpu else 0, FLEX_BLOCK if on_gpu else 64)
            packed.append([_Micro(batch) for batch in self._share(batches)])
        return packed

    def _share(self, batches: list[MicroBatch]) -> list[MicroBatch]:
        """This rank's micro-batches: ZeRO needs as many on every rank, so a missing one is filled up without weight."""
        mine = batches[self.rank :: self.world]
        if len(mine) < -(-len(batches) // self.world):
            entries = replace(batches[0].entries, weights=np.zeros_like(batches[0].entries.weights))
            mine.append(replace(batches[0], entries=entries, tree_tokens=0, sample_tokens=0))
        return mine

    @torch.no_grad()
    def _logprobs(self, model: Callable[[MicroBatch, float], tuple[Tensor, Tensor]], batch: MicroBatch) -> Tensor:
        return model(batch, self.temperature)[0]

    def _frozen(self, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        with without_adapters(self.model.lm):
            found: tuple[Tensor, Tensor] = self.engine(batch, temperature)
        return found

    def _train(self, minibatches: list[list[_Micro]], objective: Objective) -> dict[str, float]:
        start = time.perf_counter()
        updates = [self._step(m, objective) for _ in range(self.config.num_epoch) for m in minibatches]
        batches = [micro.batch for micros in minibatches for micro in micros]
        # Not every minibatch has every metric: the mismatch is known only where the sampling weights were met.
        names = dict.fromkeys(name for u in updates for name in u)
        metrics = {name: float(np.mean([u[name] for u in updates if name in u])) for name in names}
        if self.device.type == "cuda":
            metrics["peak_gpu_memory_gb"] = torch.cuda.max_memory_reserved(self.device) / 2**30
        return metrics | {
            "num_update": float(len(updates)),
            "entries": float(sum(len(b.entries.nodes) for b in batches)),
            "tree_tokens": float(sum(b.tree_tokens for b in batches)),
            "sample_tokens": float(sum(b.sample_tokens for b in batches)),
            "padded_tokens": float(sum(b.ids.size for b in batches)),
            "packing_ratio": packing_ratio(batches),
            "train_s": time.perf_counter() - start,
        }

    def _step(self, micros: list[_Micro], objective: Objective) -> dict[str, float]:
        """One optimizer step; returns its metrics."""
        local_weight = torch.tensor(sum(float(m.batch.entries.weights.sum()) for m in micros), device=self.device)
        dist.all_reduce(local_weight)
        total_weight = float(local_weight)
        sums: dict[str, Tensor] = {}
        self._bad_gradient.zero_()
        for micro in micros:
            loss, metrics = objective(micro, total_weight)
            sums = {name: sums.get(name, 0) + value for name, value in metrics.items()}
            self.engine.backward(loss * self.world)  # DeepSpeed averages gradients over the ranks
        names = list(sums)
        values = torch.stack([*(sums[name] for name in names), self._bad_gradient])
        dist.all_reduce(values)
        *found, bad_gradient = values.tolist()
        metrics_now = dict(zip(names, found, strict=True))
        if bad_gradient or not math.isfinite(metrics_now["loss"]):
            self.engine.optimizer.zero_grad()
            what = "gradient" if math.isfinite(metrics_now["loss"]) else "loss"
            raise LearnerError(
                f"update {self.num_updates}: the {what} is not finite, no step was taken; metrics {metrics_now}. "
                "Look for extreme logprobs or advantages in the samples, or lower the learning rate"
            )
        lr = self.config.lr * lr_factor(self.num_updates, self.total_update, self.config)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = lr
        self.engine.step()
        self.num_updates += 1
        return metrics_now | {"grad_norm": float(self.engine.get_global_grad_norm()), "lr": lr}

    def _watch_gradient(self, grad: Tensor) -> None:
        # The sum is infinite or nan where any element is; reading one number a parameter costs next to nothing.
        self._bad_gradient += (~grad.sum().isfinite()).float()

    def weights(self, dtype: torch.dtype = torch.float32) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, tensor) of every weight, tied ones once, or of the adapters alone where those train
        (`rlanything.weights.lora`). Valid until the next update.

        With several ranks every rank must take them all, for ZeRO-3 gathers each from all ranks.
        """
        lm = self.model.lm
        named = adapters(lm) if self.config.lora_rank else ((name, p, 1.0) for name, p in lm.named_parameters())
        for name, parameter, scale in named:
            with self._gathered([parameter], enabled=self.config.zero_stage == 3):
                yield name, (parameter.detach() * scale if scale != 1 else parameter.detach()).to(dtype)

    def _merged(self) -> Iterator[tuple[str, Tensor]]:
        """All weights as a model without adapters has them, float32."""
        if not self.config.lora_rank:
            return self.weights()
        trained = [(name, tensor.clone()) for name, tensor in self.weights()]
        return merged(self._own(), trained)

    def _own(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in frozen(self.model.lm):
            with self._gathered([parameter], enabled=self.config.zero_stage == 3):
                yield name, parameter.detach().float()

    def checksum(self, dtype: torch.dtype) -> str:
        """A digest of the weights as an engine of `dtype` holds them."""
        return checksum(self.weights(), dtype)

    def save(self, folder: Path) -> None:
        """All that `load` needs to continue exactly. The folder appears by rename; it must not exist."""
        part = folder.with_name(folder.name + ".part")
        if self.rank == 0:
            shutil.rmtree(part, ignore_errors=True)  # of a save that was cut off
        dist.barrier()
        part.mkdir(parents=True, exist_ok=True)
        self._state().save(part)
        dist.barrier()
        if self.rank == 0:
            state = {"rng": self._rng.bit_generator.state, "num_updates": self.num_updates}
            (part / STATE).write_text(sealed(state))
            os.rename(part, folder)
        dist.barrier()

    def load(self, folder: Path) -> None:
        """Continue from `save`, whatever the number of ranks and the ZeRO stage were then.

        Raises LearnerError where the folder holds no such state, ValueError where it is of another model or is no
        longer what was written.
        """
        if not (folder / STATE).is_file():
            raise LearnerError(f"{folder}: no learner state found; expected what Learner.save wrote there")
        state = unsealed((folder / STATE).read_text())
        self._state().load(folder, state["num_updates"])
        self._rng.bit_generator.state, self.num_updates = state["rng"], state["num_updates"]

    def offload(self) -> None:
        """Move weights and optimizer to the host, so that an engine can have the accelerator. ZeRO 1 to 3."""
        from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as State

        on_gpu = self.device.type == "cuda"
        if self.config.zero_stage == 3:  # there DeepSpeed moves the rest of its own FusedAdam alone
            self.engine.offload_states(
                [State.lp_params, State.lp_grads, State.contiguous_grad_buffer], pin_memory=on_gpu
            )
            if not self.config.offload:  # else it never left the host
                self._state().move("cpu")
        else:
            self.engine.offload_states(pin_memory=on_gpu)
        self._move_frozen("cpu")
        if on_gpu:
            torch.cuda.empty_cache()

    def reload(self) -> None:
        """Undo `offload`."""
        self.engine.reload_states()
        if self.config.zero_stage == 3 and not self.config.offload:
            self._state().move(self.device)
        self._move_frozen(self.device)

    def _move_frozen(self, device: torch.device | str) -> None:
        """What DeepSpeed does not move: it has no optimizer. With ZeRO-3 the reference is in parts."""
        if self.config.zero_stage == 3:
            parts: Any = self._reference.parameters() if isinstance(self._reference, torch.nn.Module) else ()
            for parameter in parts:
                parameter.ds_tensor.data = parameter.ds_tensor.data.to(device)
        else:
            reference = self._reference.parameters() if isinstance(self._reference, TreeModel) else ()
            for parameter in (*self.model.parameters(), *reference):
                if not parameter.requires_grad:
                    parameter.data = parameter.data.to(device)

    def _state(self) -> ShardedState:
        return ShardedState(self.engine, self.model.lm, self.config.zero_stage, self.rank, self.world)

    def export(self, folder: Path) -> None:
        """Write model (float32, adapters merged) and tokenizer in Hugging Face format; the folder appears by rename or
        is replaced."""
        state = {}
        for name, tensor in self._merged():  # on every rank, for they gather it together
            if self.rank == 0:
                state[name] = tensor.to("cpu", copy=True)
        if self.rank == 0:
            part = folder.with_name(folder.name + ".part")
            shutil.rmtree(part, ignore_errors=True)
            self.model.lm.save_pretrained(part, state_dict=state)
            self.tokenizer.save_pretrained(part)
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(part, folder)
        dist.barrier()

    def close(self) -> None:
        """Release the memory."""
        self.engine.destroy()
        if self.config.zero_stage == 3 and hasattr(self._reference, "destroy"):
            self._reference.destroy()
        del self.engine, self.model, self._reference
        gc.collect()  # hooks and the head's forward pass refer back to what holds them
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
