"""A learner's weights and optimizer moments on disk: every rank writes the pieces that it holds, and reads whichever
overlap those that it needs, so that a checkpoint loads at any number of ranks and any ZeRO stage.

A piece is a run of elements of one flattened tensor; its key in a .safetensors file is NAME/KIND/START. Nothing in the
files is code, as a pickle would be. DeepSpeed's own checkpoints load at the number of ranks that wrote them, and at
another only after a conversion.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from rlanything.weights.checksum import checksum

KINDS = ("weight", "exp_avg", "exp_avg_sq")  # float32 weights and AdamW's two moments
CHECKSUM = "checksum"  # of a file's pieces, in its header
FILE_BYTES = 1 << 31  # of a file: what is copied to the host at once


class ShardedState:
    """The float32 weights and moments of a DeepSpeed engine's model, as this rank holds them."""

    def __init__(self, engine: Any, model: nn.Module, stage: int, rank: int, world: int) -> None:
        self.model, self.stage, self.rank, self.world = model, stage, rank, world
        self.zero: Any = engine.optimizer if stage else None
        self.adam: torch.optim.Optimizer = engine.optimizer.optimizer if stage else engine.optimizer

    @property
    def trained(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters that have moments."""
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    def save(self, folder: Path) -> None:
        """Write this rank's pieces; before the first update there are no moments."""
        pieces: dict[str, Tensor] = {}
        size = num_file = 0
        for i, (name, parameter) in enumerate(self.trained):
            start, views = self._held(parameter)
            if self.stage == 0 and i % self.world != self.rank:
                continue  # every rank holds all: they take turns
            for kind, view in views.items():
                pieces[f"{name}/{kind}/{start}"] = view.detach().to("cpu", copy=True)
                size += view.nbytes
            if size >= FILE_BYTES:
                self._write(folder, pieces, num_file)
                pieces, size, num_file = {}, 0, num_file + 1
        self._write(folder, pieces, num_file)

    def load(self, folder: Path, num_updates: int) -> None:
        """Read all that this rank holds. Raises ValueError where the files hold another model, or something else than
        was written: each rank looks at its share of them."""
        pieces = Pieces(folder)
        pieces.verify(self.rank, self.world)
        if num_updates:
            self._make_moments(num_updates)
        with torch.no_grad():
            for name, parameter in self.trained:
                pieces.check(name, getattr(parameter, "ds_numel", parameter.numel()))
                start, views = self._held(parameter)
                for kind, view in views.items():
                    view.copy_(pieces.read(name, kind, start, view.numel()))
                if self.stage in (1, 2):  # the weights of the forward pass: whole on every rank
                    parameter.copy_(pieces.read(name, "weight", 0, parameter.numel()).view(parameter.shape))
                elif self.stage == 3 and views:  # and here this rank's part, padded at the end
                    parameter.ds_tensor[: views["weight"].numel()].copy_(views["weight"])  # type: ignore[attr-defined]

    def move(self, device: torch.device | str) -> None:
        """Put ZeRO-3's float32 weights and moments there."""
        for flat in self.zero.fp32_partitioned_groups_flat:
            flat.data = flat.data.to(device)
            moments = self.adam.state.get(flat, {})
            for kind in KINDS[1:]:
                if kind in moments:
                    moments[kind].data = moments[kind].data.to(device)

    def _held(self, parameter: Any) -> tuple[int, dict[str, Tensor]]:
        """Where this rank's piece of a parameter starts, and views of its weights and moments, flat. None: no views."""
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
        moments = self.adam.state.get(flat, {})
        tensors = {"weight": flat.data} | {kind: moments[kind] for kind in KINDS[1:] if kind in moments}
        return start, {kind: tensor.view(-1).narrow(0, offset, length) for kind, tensor in tensors.items()}

    def _make_moments(self, num_updates: int) -> None:
        """AdamW makes them at its first step, and has taken none yet where a run is resumed."""
        if self.stage == 0:
            held = [p for _, p in self.trained]
        elif self.stage == 3:
            held = self.zero.fp32_partitioned_groups_flat
        else:
            held = self.zero.single_partition_of_fp32_groups
        for flat in held:
            moments = {kind: torch.zeros_like(flat.data) for kind in KINDS[1:]}
            where = flat.device if self.adam.defaults["fused"] else "cpu"
            self.adam.state[flat] = {"step": torch.tensor(float(num_updates), device=where), **moments}

    def _write(self, folder: Path, pieces: dict[str, Tensor], number: int) -> None:
        metadata = {CHECKSUM: checksum(pieces.items(), torch.float32)}
        save_file(pieces, folder / f"rank_{self.rank:04d}_{number:04d}.safetensors", metadata)


class Pieces:
    """All pieces in a folder, whoever wrote them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: list[tuple[Path, Any]] = []
        self._found: dict[tuple[str, str], list[tuple[int, int, str, Any]]] = defaultdict(list)
        for path in sorted(folder.glob("rank_*.safetensors")):
            file = safe_open(path, "pt")
            self._files.append((path, file))
            for key in file.keys():  # noqa: SIM118 - not a mapping
                name, kind, start = key.rsplit("/", 2)
                length = file.get_slice(key).get_shape()[0]
                self._found[name, kind].append((int(start), length, key, file))

    def verify(self, rank: int, world: int) -> None:
        """Raise ValueError where one of this rank's share of the files does not hold what was written."""
        for path, file in self._files[rank::world]:
            found = checksum(((key, file.get_tensor(key)) for key in file.keys()), torch.float32)  # noqa: SIM118
            if found != (file.metadata() or {}).get(CHECKSUM):
                raise ValueError(f"{path}: its content does not have the checksum that it was written with")

    def check(self, name: str, length: int) -> None:
        """Raise ValueError where a tensor has another number of elements in the files."""
        found = sum(piece[1] for piece in self._found[name, "weight"])
        if found != length:
            raise ValueError(f"{self.folder}: {name} has {found} elements, expected {length}; is it of another model?")

    def read(self, name: str, kind: str, start: int, length: int) -> Tensor:
        """Elements [start, start + length) of a flattened tensor. Raises ValueError where the files lack some."""
        parts = list(self._overlapping(name, kind, start, start + length))
        if sum(part.numel() for part in parts) != length:
            raise ValueError(f"{self.folder}: lacks elements of {name} ({kind}); was it made from another model?")
        return torch.cat(parts)

    def _overlapping(self, name: str, kind: str, start: int, stop: int) -> Iterator[Tensor]:
        for first, length, key, file in sorted(self._found[name, kind], key=lambda piece: piece[0]):
            low, high = max(start, first), min(stop, first + length)
            if low < high:
                yield file.get_slice(key)[low - first : high - first]
