"""A learner's float32 weights and AdamW moments: on disk, and on the host while an engine has the accelerator.

Every rank writes the shards that it holds, and reads those that overlap the ones it needs. So a checkpoint loads at any
number of ranks and any ZeRO stage; DeepSpeed's own needs a conversion. A shard is a contiguous run of elements of one
flattened tensor; its key in a .safetensors file, which unlike a pickle holds no code, is NAME/KIND/START.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from rlanything.config.schema import LearnerConfig
from rlanything.weights.checksum import checksum

MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's names; the third kind of shard is "weight"
CHECKSUM = "checksum"  # key in a file's header: the checksum of its shards
FILE_BYTES = 1 << 31  # size from which a file is written, which bounds what is copied to the host at once


class ShardedState:
    """The weights and moments of a DeepSpeed engine's model, as this rank holds them."""

    def __init__(self, engine: Any, model: nn.Module, config: LearnerConfig, device: torch.device) -> None:
        self.engine, self.model, self.config, self.device = engine, model, config, device
        self.rank, self.world, self.stage = dist.get_rank(), dist.get_world_size(), config.zero_stage
        self.zero: Any = engine.optimizer if self.stage else None
        self.adam: torch.optim.Optimizer = engine.optimizer.optimizer if self.stage else engine.optimizer

    @property
    def trained(self) -> list[tuple[str, nn.Parameter]]:
        """(name, parameter) of everything that trains and so has moments."""
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    def save(self, folder: Path) -> None:
        """Write this rank's shards. Before the first update there are no moments to write."""
        shards: dict[str, Tensor] = {}
        size = num_file = 0
        for i, (name, parameter) in enumerate(self.trained):
            if self.stage == 0 and i % self.world != self.rank:
                continue  # every rank holds every parameter, so they share out the writing
            start, views = self._local(parameter)
            for kind, view in views.items():
                shards[f"{name}/{kind}/{start}"] = view.detach().to("cpu", copy=True)
                size += view.nbytes
            if size >= FILE_BYTES:
                self._write(folder, shards, num_file)
                shards, size, num_file = {}, 0, num_file + 1
        self._write(folder, shards, num_file)

    def load(self, folder: Path, num_updates: int) -> None:
        """Read all that this rank holds, as it was after `num_updates` updates.

        Raises ValueError if the files are another model's or have changed.
        """
        saved = SavedShards(folder, self.rank, self.world)
        if num_updates:
            self._make_moments(num_updates)
        with torch.no_grad():
            for name, parameter in self.trained:
                saved.check(name, getattr(parameter, "ds_numel", parameter.numel()))
                start, views = self._local(parameter)
                for kind, view in views.items():
                    view.copy_(saved.read(name, kind, start, view.numel()))
                if self.stage in (1, 2):  # the forward pass uses a copy of its own, which is whole on every rank
                    parameter.copy_(saved.read(name, "weight", 0, parameter.numel()).view(parameter.shape))
                elif self.stage == 3 and views:  # here that copy is this rank's shard, padded at its end
                    parameter.ds_tensor[: views["weight"].numel()].copy_(views["weight"])  # type: ignore[attr-defined]

    def offload(self) -> None:
        """Move weights, gradients and moments to the host. ZeRO stages 1 to 3 only."""
        from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as State

        pin_memory = self.device.type == "cuda"
        if self.stage < 3:
            self.engine.offload_states(pin_memory=pin_memory)
            return
        states = [State.lp_params, State.lp_grads, State.contiguous_grad_buffer]
        self.engine.offload_states(states, pin_memory=pin_memory)
        self._move_optimizer("cpu")

    def reload(self) -> None:
        """Move back what `offload` moved."""
        self.engine.reload_states()
        if self.stage == 3:
            self._move_optimizer(self.device)

    def _move_optimizer(self, device: torch.device | str) -> None:
        """Move float32 weights and moments. At stage 3 DeepSpeed does so for its own FusedAdam only."""
        if self.config.offload:
            return  # they are always on the host
        for flat in self.zero.fp32_partitioned_groups_flat:
            flat.data = flat.data.to(device)
            state = self.adam.state.get(flat, {})
            for kind in MOMENTS:
                if kind in state:
                    state[kind].data = state[kind].data.to(device)

    def _local(self, parameter: Any) -> tuple[int, dict[str, Tensor]]:
        """The start of this rank's shard of a parameter, and flat views of it by kind; (0, {}) if it has no shard.

        DeepSpeed keeps many parameters in one flat tensor. The shard is its `length` elements from `offset`.
        """
        if self.stage == 0:
            flat, start, offset, length = parameter, 0, 0, parameter.numel()
        elif self.stage == 3:
            group, offset, _ = self.zero.grad_position[self.zero.get_param_id(parameter)]
            flat = self.zero.fp32_partitioned_groups_flat[group]
            size = parameter.ds_tensor.numel()
            start = self.rank * size
            length = max(0, min(size, parameter.ds_numel - start))
        else:
            mapping = parameter._hp_mapping
            if mapping is None:
                return 0, {}
            flat = self.zero.single_partition_of_fp32_groups[mapping.param_group_index]
            start, length = mapping.lp_fragment_address.start, mapping.lp_fragment_address.numel
            offset = mapping.get_hp_fragment_address().start
        if not length:
            return 0, {}
        state = self.adam.state.get(flat, {})
        tensors = {"weight": flat.data} | {kind: state[kind] for kind in MOMENTS if kind in state}
        return start, {kind: tensor.view(-1).narrow(0, offset, length) for kind, tensor in tensors.items()}

    def _make_moments(self, num_updates: int) -> None:
        """Make the moments that AdamW makes at its first step, which a resumed learner has not taken."""
        if self.stage == 3:
            trained = self.zero.fp32_partitioned_groups_flat
        else:
            trained = [p for group in self.adam.param_groups for p in group["params"]]
        for flat in trained:
            device = flat.device if self.adam.defaults["fused"] else "cpu"
            step = torch.tensor(float(num_updates), device=device)
            self.adam.state[flat] = {"step": step} | {kind: torch.zeros_like(flat.data) for kind in MOMENTS}

    def _write(self, folder: Path, shards: dict[str, Tensor], number: int) -> None:
        metadata = {CHECKSUM: checksum(shards.items(), torch.float32)}
        save_file(shards, folder / f"rank_{self.rank:04d}_{number:04d}.safetensors", metadata)


class SavedShards:
    """All shards in a folder. Each of `world` ranks verifies its share of the files.

    Raises ValueError if a file does not match its checksum.
    """

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        self.folder = folder
        self._shards: dict[tuple[str, str], list[tuple[int, int, str, Any]]] = defaultdict(list)
        for i, path in enumerate(sorted(folder.glob("rank_*.safetensors"))):
            file: Any = safe_open(path, "pt")
            keys = file.keys()
            if i % world == rank:
                content = checksum(((key, file.get_tensor(key)) for key in keys), torch.float32)
                if content != (file.metadata() or {}).get(CHECKSUM):
                    raise ValueError(f"{path}: its content does not match the checksum that it was written with")
            for key in keys:
                name, kind, start = key.rsplit("/", 2)
                length = file.get_slice(key).get_shape()[0]
                self._shards[name, kind].append((int(start), length, key, file))

    def check(self, name: str, length: int) -> None:
        """Raise ValueError if the files do not hold exactly `length` elements of a weight."""
        found = sum(shard[1] for shard in self._shards[name, "weight"])
        if found != length:
            raise ValueError(
                f"{self.folder}: {name}: found {found} elements, expected {length}; is it another model's?"
            )

    def read(self, name: str, kind: str, start: int, length: int) -> Tensor:
        """Elements [start, start + length) of a flattened tensor. Raises ValueError if the files lack some of them."""
        parts = []
        for first, size, key, file in sorted(self._shards[name, kind], key=lambda shard: shard[0]):
            low, high = max(start, first), min(start + length, first + size)
            if low < high:
                parts.append(file.get_slice(key)[low - first : high - first])
        if sum(part.numel() for part in parts) != length:
            raise ValueError(f"{self.folder}: elements of {name} ({kind}) are missing; is it another model's?")
        return torch.cat(parts)
