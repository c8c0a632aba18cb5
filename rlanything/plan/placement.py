"""Place engines, learner ranks and environment hosts on nodes and their accelerators. Pure.

Accelerators are numbered through all nodes. Engines take consecutive ones, role after role, and share none. With
`placement: colocated` every accelerator also holds a learner rank, and engine and rank take turns; with `split` the
learners get the accelerators that the engines leave. If there is only one accelerator, all engines share it, each with
its part of the memory. On CPUs, processes are dealt to the nodes in turn.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from rlanything.config.schema import Config
from rlanything.config.section import Learner, Role
from rlanything.errors import ConfigError


@dataclass(frozen=True)
class Slot:
    """The place of one process: a node's number, and the accelerators that it sees there (none: the CPU)."""

    node: int
    devices: tuple[int, ...] = ()


@dataclass(frozen=True)
class Placement:
    """`engines` has one slot a replica, `learners` one a rank (each trains every model that learns)."""

    engines: dict[str, list[Slot]]
    learners: list[Slot]
    hosts: list[Slot]

    @property
    def shares_devices(self) -> bool:
        """True if an accelerator has engines and learners both: one of them at a time then has its memory."""
        used = {(slot.node, device) for slots in self.engines.values() for slot in slots for device in slot.devices}
        return any((slot.node, device) in used for slot in self.learners for device in slot.devices)


@dataclass(frozen=True)
class Route:
    """How a role's weights go to its engines (`cluster.weight_transfer`).

    `how` is "store" (Ray's object store alone), "broadcast" (NCCL too), or "ipc" (CUDA IPC too, from `senders`, the
    learner rank beside each worker)."""

    how: str
    senders: tuple[int, ...] = ()


def route(config: Config, placement: Placement, role: Learner) -> Route:
    """Choose the route. It is "store" on CPUs, where nothing is faster, and for LoRA, whose adapters are small.

    Raises ConfigError if "ipc" was asked for and a worker has no learner rank beside it.
    """
    how: str = config.cluster.weight_transfer
    engine = config.engine.of(role)
    if config.training.of(role).lora_rank:
        return Route("store")
    senders = _neighbours(placement, role, engine.tensor_parallel_size)
    if how == "ipc" and not senders:
        raise ConfigError(
            f"cluster.weight_transfer=ipc: a worker of the {role} engine has no learner rank beside it to take weights "
            "from; use placement=colocated with cluster.num_learner=0, or weight_transfer=auto"
        )
    if how == "auto":
        if config.experiment.num_device == 0 or engine.kind != "vllm":
            how = "store"
        elif not placement.shares_devices:
            how = "broadcast"
        else:
            how = "ipc" if senders else "store"
    return Route(how, senders if how == "ipc" else ())


def _neighbours(placement: Placement, role: str, num_worker: int) -> tuple[int, ...]:
    """The rank on each worker's accelerator, else one on its node; nothing if a worker has neither."""
    senders: list[int] = []
    for slot in placement.engines[role]:
        on_cpu: list[tuple[int, ...]] = [()] * num_worker
        for devices in [(device,) for device in slot.devices] or on_cpu:
            beside = [i for i, s in enumerate(placement.learners) if (s.node, s.devices) == (slot.node, devices)]
            if not beside:
                return ()
            senders.append(beside[len(senders) % len(beside)])
    return tuple(senders)


def place(config: Config, roles: Sequence[Role], learns: bool = True) -> Placement:
    """The plan for engines of `roles`, and for learners if there are any.

    Raises ConfigError naming the number that is too large.
    """
    experiment, cluster = config.experiment, config.cluster
    nodes, total = experiment.num_node, experiment.num_node * experiment.num_device
    hosts = [Slot(i % nodes) for i in range(cluster.num_env_host or nodes)]
    engines: dict[str, list[Slot]] = {}
    if total == 0:
        numbers = itertools.count()
        for role in roles:
            engines[role] = [Slot(next(numbers) % nodes) for _ in range(config.engine.of(role).num_replica)]
        return Placement(engines, [Slot(i % nodes) for i in range(max(1, cluster.num_learner)) if learns], hosts)
    if total == 1:
        return Placement({role: [Slot(0, (0,))] for role in roles}, [Slot(0, (0,))] if learns else [], hosts)
    used = 0
    for role in roles:
        engine = config.engine.of(role)
        size = engine.tensor_parallel_size
        if experiment.num_device % size:
            raise ConfigError(
                f"engine.{role}.tensor_parallel_size={size}: does not divide experiment.num_device="
                f"{experiment.num_device}, and an engine cannot span nodes; choose a divisor"
            )
        used = -(-used // size) * size  # so that no engine spans two nodes
        engines[role] = [_slot(config, used + i * size, size) for i in range(engine.num_replica)]
        used += engine.num_replica * size
        if used > total:
            raise ConfigError(
                f"engine.{role}.num_replica={engine.num_replica}: with tensor_parallel_size={size} and the engines "
                f"before it, it needs {used} accelerators, and experiment.num_node x num_device are {total}; lower it"
            )
    first = used if cluster.placement == "split" else 0
    num = (cluster.num_learner or total - first) if learns else 0
    if learns and not 0 < num <= total - first:
        lower = "it or engine.*.num_replica" if cluster.num_learner else "engine.*.num_replica"
        raise ConfigError(
            f"cluster.num_learner={cluster.num_learner}: placement {cluster.placement} leaves {total - first} of "
            f"{total} accelerators for the learners; lower {lower}"
        )
    return Placement(engines, [_slot(config, i, 1) for i in range(first, first + num)], hosts)


def where(slots: Sequence[Slot], num_device: int) -> str:
    """Slots in words: nodes, and the accelerators of a node if not all of them."""
    used: dict[int, set[int]] = {}
    for slot in slots:
        used.setdefault(slot.node, set()).update(slot.devices)
    nodes_of: dict[str, list[int]] = {}
    for node, devices in sorted(used.items()):
        nodes_of.setdefault("" if len(devices) == num_device else f" ({_ranges(sorted(devices))})", []).append(node)
    return ", ".join(f"node {_ranges(nodes)}{which}" for which, nodes in nodes_of.items())


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges, such as "0-3 6"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _slot(config: Config, first: int, size: int) -> Slot:
    node, index = divmod(first, config.experiment.num_device)
    return Slot(node, tuple(range(index, index + size)))
