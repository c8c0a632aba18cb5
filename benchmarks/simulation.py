"""The model behind simulate_cluster.py: one step of the loop as processes on a clock. It does no I/O.

Simulated: episodes as coroutines on hosts (one process a node, whose own work queues), each host's own routing, sticky
replicas, m evaluations of a turn while its episode goes on, continuous batching; proposals. By formula: updates
(ZeRO-3), weights, the driver's work and calls. Left out: KV cache limits, failures, cut-off responses, checkpoints,
memory, prefixes that episodes share, jitter.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rlanything.config.roles import engine_roles
from rlanything.config.schema import Config
from rlanything.plan.estimate import FLOPS, READ_BYTES, SHARE, STEP_S
from rlanything.plan.placement import Placement, Slot, place, route

BUCKET_BYTES, SAMPLE_BYTES = 1 << 28, 20  # of cluster/weights.py and, a token, types.Sample
REPORT_S, NUM_REPORT = 0.5, 32  # of cluster/hosts.py
# Parameters, layers, KV cache of a token [B], by their config.json: Qwen2.5-7B, Qwen2.5-14B, Qwen3-4B.
MODELS = {"policy": (7.6e9, 28, 57344), "reward": (14.8e9, 48, 196608), "rewriter": (4.0e9, 36, 147456)}


@dataclass(frozen=True)
class Hardware:
    """Assumed: one H100-class node among equals."""

    per_node: int = 8
    flops: float = FLOPS
    mfu: float = SHARE
    hbm: float = READ_BYTES
    nvlink: float = 450e9  # each way [B/s] (data sheet)
    network: float = 50e9  # an accelerator's own adapter [B/s]: 400 Gb/s
    hop_s: float = 5e-6  # latency of a ring's hop
    overhead_s: float = STEP_S
    object_bytes_s: float = 2e9  # between two nodes' object stores [B/s]
    load_bytes_s: float = 5e9  # from the object store into an engine [B/s]


@dataclass(frozen=True)
class Costs:
    """Measured, CPU seconds: see measured_costs.py. "Carried" is an id or a logprob of an episode."""

    call_s: float = 5.1e-4  # driver: an actor call among many
    latency_s: float = 1e-3  # an actor call's round trip, alone
    wait_s: float = 3.9e-7  # driver: one look at one pending reference (`calls.result` looks at all for each)
    ask_s: float = 8.7e-4  # host: a call with a prompt
    encode_s: float = 6.2e-6  # host: a token of a judge's prompt, which is encoded whole at every turn
    digest_s: float = 2.6e-7  # host: carried; feedback, figures, samples, parquet
    group_s: float = 2.1e-5  # driver: a group's summary
    set_s: float = 9.4e-5  # driver: a set of samples, from a host's reference to a rank's argument
    tree_s: float = 4.1e-8  # learner rank: a token of its own Samples, merged and packed
    put_s: float = 1.3e-10  # learner rank 0: a byte into the object store
    checksum_s: float = 2.4e-10  # learner rank 0, then engines: a byte of the weights


@dataclass(frozen=True)
class Workload:
    """Assumed: medians of log-normal lengths [tokens], and shares that train."""

    turns: float = 20.0
    sigma: float = 0.6  # of all of them
    first: int = 540  # the first prompt
    observation: float = 250.0
    response: float = 80.0
    judge_first: int = 310
    judge_turn: int = 40  # what a turn adds to the judge's transcript, which holds no lists of commands
    judgement: float = 120.0
    rewrite_prompt: int = 1500
    rewrite: float = 150.0
    policy_share: float = 0.7  # of the turns: groups within algorithm.band
    reward_share: float = 0.4  # of the evaluations: within reward.band, and not unanimous


class Turn(NamedTuple):
    """Tokens: the prompt, its part that no cache holds, the response; the same of the judge."""

    prompt: int
    new: int
    response: int
    judge_prompt: int
    judge_new: int
    judged: tuple[int, ...]


class Speed(NamedTuple):
    """A replica: a decode step takes t0 + t1 * sequences + t2 * their KV tokens [s]; a prompt, prefill_s a token."""

    t0: float
    t1: float
    t2: float
    prefill_s: float
    max_num_seqs: int


Episode = list[Turn]
Process = Iterator[Any]  # yields the time to go on at, or a replica and its request


def engine_speed(role: str, tp: int, max_num_seqs: int, hardware: Hardware) -> Speed:
    """A step reads all weights and KV once; a token costs 2 FLOP a parameter, decoded or prefilled."""
    (parameters, _, kv_bytes), read_s = MODELS[role], 1 / (hardware.hbm * tp)
    token_s = 2 * parameters / (hardware.flops * hardware.mfu * tp)
    return Speed(hardware.overhead_s + 2 * parameters * read_s, token_s, kv_bytes * read_s, token_s, max_num_seqs)


class Clock:
    """Simulated time, and the calls that wait for theirs."""

    def __init__(self) -> None:
        self.now, self._queue, self._count = 0.0, list[Any](), itertools.count()

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Call at a time."""
        heapq.heappush(self._queue, (when, next(self._count), call, args))

    def go(self, process: Process) -> None:
        """Run a process to its next wait."""
        wait = next(process, None)
        if isinstance(wait, float):
            self.at(wait, self.go, process)
        elif wait:
            replica, *request = wait
            replica.submit(process, *request)

    def run(self) -> None:
        """Make all calls, in the order of their times."""
        while self._queue:
            self.now, _, call, args = heapq.heappop(self._queue)
            call(*args)


class Replica:
    """Continuous batching: requests join between decode steps, and their prefill holds up all others.

    The steps between two joins or ends are summed in closed form; `time` is when the last such span ended.
    """

    def __init__(self, clock: Clock, speed: Speed) -> None:
        self.clock, self.speed, self.time, self.busy = clock, speed, 0.0, 0.0
        self.steps = self.kv = self.decoded = self.plan = 0
        self.running: list[Any] = []  # heap of (last step, order, KV by then, process of the longest sample)
        self.waiting: deque[Any] = deque()
        self._order = itertools.count()

    def submit(self, process: Process, new: int, prompt: int, lengths: tuple[int, ...]) -> None:
        """Queue a request now; its process goes on when the longest of its samples ends."""
        assert len(lengths) <= self.speed.max_num_seqs, "engine.*.max_num_seqs is below the samples of a request"
        self.waiting.append((process, new, prompt, sorted(lengths)))
        self.time = self.time if self.running else max(self.time, self.clock.now)
        if self._fits():
            self._plan()

    def _fits(self) -> bool:
        return bool(self.waiting) and len(self.running) + len(self.waiting[0][3]) <= self.speed.max_num_seqs

    def _plan(self) -> None:
        """Stop when the first sequence ends, or at the end of the step under way if a request can join then."""
        steps = self.running[0][0] - self.steps if self.running else 0
        if self._fits():
            steps = min(steps, self._steps_until(self.clock.now))
        self.plan += 1  # an earlier one is void
        self.clock.at(max(self.clock.now, self.time + self._seconds(steps)), self._stop, steps, self.plan)

    def _stop(self, steps: int, plan: int) -> None:
        if plan != self.plan:
            return
        took, tokens = self._seconds(steps), len(self.running) * steps
        self.steps, self.kv, self.decoded = self.steps + steps, self.kv + tokens, self.decoded + tokens
        while self.running and self.running[0][0] == self.steps:
            _, _, kv, process = heapq.heappop(self.running)
            self.kv -= kv
            if process:
                self.clock.go(process)
        while self._fits():
            process, new, prompt, lengths = self.waiting.popleft()
            took += new * self.speed.prefill_s
            for i, n in enumerate(lengths, 1):
                entry = (self.steps + n, next(self._order), prompt + n, process if i == len(lengths) else None)
                heapq.heappush(self.running, entry)
                self.kv += prompt
        self.time, self.busy = self.time + took, self.busy + took
        if self.running:
            self._plan()

    def _rates(self) -> tuple[float, float]:
        """Seconds of the next step, and how much longer each one after it takes."""
        t0, t1, t2, *_ = self.speed
        return t0 + t1 * len(self.running) + t2 * self.kv, t2 * len(self.running)

    def _seconds(self, steps: int) -> float:
        first, growth = self._rates()
        return steps * first + growth * steps * (steps - 1) / 2

    def _steps_until(self, when: float) -> int:
        (first, growth), left = self._rates(), max(0.0, when - self.time)
        half = first - growth / 2  # below: the root of _seconds(n) = left, so written that growth may be 0
        return math.ceil(2 * left / (half + math.sqrt(half * half + 2 * growth * left)) - 1e-9) if left else 0


Engines = dict[str, list[Replica]]


class Host:
    """An environment host with its share of the episodes.

    Like its `ReplicatedEngine`, it counts its own requests alone, and starts at a random one of equal replicas.
    """

    def __init__(self, clock: Clock, engines: Engines, left: list[Episode], costs: Costs, seed: int) -> None:
        self.clock, self.engines, self.costs, self.left = clock, engines, costs, deque(left)
        self.carried = sum(t.prompt + 2 * t.response + t.judge_prompt + 2 * sum(t.judged) for e in left for t in e)
        self.under_way = {role: [0] * len(found) for role, found in engines.items()}
        self.rng = random.Random(seed)
        self.free = self.end = 0.0

    def play(self) -> Process:
        """Play episodes one after another. A host runs as many such processes as episodes may be under way at once."""
        while self.left:
            held: dict[str, int] = {}  # the replica of each role that this episode stays with
            for turn in self.left.popleft():
                yield from self._ask("policy", held, turn.new, turn.prompt, (turn.response,), 0.0)
                if turn.judged:
                    self.clock.at(self.clock.now, self.clock.go, self._judge(held, turn))

    def _judge(self, held: dict[str, int], turn: Turn) -> Process:
        encode_s = turn.judge_prompt * self.costs.encode_s
        yield from self._ask("reward", held, turn.judge_new, turn.judge_prompt, turn.judged, encode_s)

    def _ask(self, role: str, held: dict, new: int, prompt: int, lengths: tuple[int, ...], work_s: float) -> Process:
        counts = self.under_way[role]
        if role not in held:
            first = self.rng.randrange(len(counts))
            held[role] = ((counts[first:] + counts[:first]).index(min(counts)) + first) % len(counts)
        counts[held[role]] += 1
        self.free = max(self.free, self.clock.now) + self.costs.ask_s + work_s
        yield self.free + self.costs.latency_s
        yield self.engines[role][held[role]], new, prompt, lengths
        counts[held[role]] -= 1
        self.end = self.clock.now


def draw_lengths(rng: np.random.Generator, load: Workload, median: float, size: Any, most: float = 1e9) -> np.ndarray:
    """Log-normal, at least 1 and at most `most` [tokens]."""
    return np.clip(median * np.exp(load.sigma * rng.standard_normal(size)), 1, most).astype(int)


def draw_episodes(load: Workload, config: Config, num: int, seed: int = 0) -> list[Episode]:
    """Episodes of the workload's lengths."""
    rng, rollout, reward, episodes = np.random.default_rng(seed), config.rollout, config.reward, []
    for n in draw_lengths(rng, load, load.turns, num, rollout.max_interaction_step).tolist():
        responses = draw_lengths(rng, load, load.response, n, rollout.max_response_tokens)
        new = draw_lengths(rng, load, load.observation, n)
        new[0] = load.first
        judged = draw_lengths(rng, load, load.judgement, (n, reward.num_evaluation), reward.max_response_tokens)
        columns = np.stack([np.cumsum(new + responses) - responses, new, responses], axis=1).tolist()
        added, transcripts = load.judge_turn, (load.judge_first + load.judge_turn * np.arange(n)).tolist()
        rows = zip(columns, transcripts, judged.tolist(), strict=True)
        episodes.append([Turn(*tokens, transcript, added, tuple(votes)) for tokens, transcript, votes in rows])
    return episodes


def ring_s(size: float, world: int, collectives: int, hardware: Hardware) -> float:
    """Seconds of an all-gather or reduce-scatter of `size` bytes over all ranks; rings use all adapters."""
    across = hardware.network * hardware.per_node if world > hardware.per_node else math.inf
    return (world - 1) * (size / world / min(hardware.nvlink, across) + collectives * hardware.hop_s)


def spread_s(size: float, slots: Sequence[Slot], hardware: Hardware) -> float:
    """Seconds from one node's object store to those of the slots' nodes: a binary tree, bucket after bucket."""
    depth = math.ceil(math.log2(len({slot.node for slot in slots})))
    return 2 * (size + (depth - 1) * min(size, BUCKET_BYTES)) / hardware.object_bytes_s if depth else 0.0


def update_s(role: str, tokens: float, world: int, config: Config, hardware: Hardware) -> tuple[float, float]:
    """(seconds, seconds of a rank if all had the same work) for packed tokens.

    A rank without a micro-batch of its own takes a weightless one. ZeRO-3 gathers float32 weights for every pass, and
    computation hides none of it.
    """
    (parameters, layers, _), training = MODELS[role], config.training.of(role)
    num, reference = training.num_update, bool(training.kl_beta and training.kl_reference == "initial")
    passes = reference + (training.old_logprobs == "learner") * (num - 1) / num  # beside the trained one
    flop = (6 + 2 * training.gradient_checkpointing + 2 * passes) * parameters  # a token
    token_s = flop / (hardware.flops * hardware.mfu)
    rounds = math.ceil(math.ceil(tokens / num / training.micro_batch_tokens) / world)
    rings = (3 + passes) * ring_s(4 * parameters, world, layers, hardware)  # forward, backward, gradients
    return num * rounds * (min(tokens / num, training.micro_batch_tokens) * token_s + rings), tokens * token_s / world


def sync_s(role: str, placement: Placement, config: Config, costs: Costs, hardware: Hardware) -> float:
    """Seconds of `Run.sync_weights`: gather, stage with a checksum, send to the engines, compare with their checksum.

    Weights go from the ranks on the same accelerators, by broadcast, or by the nodes' object stores.
    """
    parameters, layers, _ = MODELS[role]
    learners, engines, size = placement.learners, placement.engines[role], 2 * parameters
    staged = ring_s(4 * parameters, len(learners), layers, hardware) + size * costs.put_s + 2 * size * costs.checksum_s
    how = route(config, placement, role).how
    if how == "ipc":  # packed, then loaded; both read and write all weights
        return staged + 4 * size / hardware.hbm
    if how == "broadcast":  # one after another: cluster/weights.py stages a tensor that was sent
        alone = {slot.node for slot in engines} == {learners[0].node}
        return staged + size / (hardware.nvlink if alone else hardware.network)
    return staged + spread_s(size, engines, hardware) + size / hardware.load_bytes_s


@dataclass
class Step:
    """Seconds of a step's parts; `busy_s` is a mean over each kind of device, or the driver's own work in all parts."""

    rollout_s: float
    collect_s: float  # rollouts, until the driver has the summaries of the groups
    rewrite_s: float
    calls: int  # that the driver makes
    busy_s: dict[str, float]
    learn_s: float = 0.0
    sync_s: float = 0.0

    def seconds(self, staleness: int) -> float:
        """Seconds of the whole step, in the order of Loop.train_step."""
        both = max(self.collect_s, self.learn_s) if staleness else self.collect_s + self.learn_s
        return both + self.rewrite_s + self.sync_s


def simulate(config: Config, episodes: Sequence[Episode], load: Workload, hardware: Hardware, costs: Costs) -> Step:
    """Simulate one step on the processes that `place` gives the configuration."""
    placement, k = place(config, engine_roles(config)), config.rollout.num_rollout_per_trial
    clock, world = Clock(), len(placement.learners)
    replicas: Engines = {}
    for role, slots in placement.engines.items():
        engine = config.engine.of(role)
        speed = engine_speed(role, engine.tensor_parallel_size, engine.max_num_seqs, hardware)
        replicas[role] = [Replica(clock, speed) for _ in slots]
    groups = [episodes[i : i + k] for i in range(0, len(episodes), k)]
    num_host = min(len(placement.hosts), len(groups))
    shares = [[e for group in groups[i::num_host] for e in group] for i in range(num_host)]
    hosts = [Host(clock, replicas, share, costs, i) for i, share in enumerate(shares)]
    for host in hosts:
        for _ in range(min(len(host.left), -(-config.rollout.max_concurrent // num_host))):
            clock.go(host.play())
    clock.run()
    rollout_s, turns = clock.now, [turn for episode in episodes for turn in episode]
    judged, decoded = sum(sum(t.judged) for t in turns), sum(r.decoded for found in replicas.values() for r in found)
    assert decoded == judged + sum(t.response for t in turns), "tokens were lost or made up"

    rng, rewriters, adaptation = np.random.default_rng(0), replicas.get("rewriter", []), config.adaptation
    for i in range(adaptation.max_candidate if rewriters else 0):
        lengths = draw_lengths(rng, load, load.rewrite, adaptation.num_try, adaptation.max_response_tokens).tolist()
        clock.go(iter([(rewriters[i % len(rewriters)], load.rewrite_prompt, load.rewrite_prompt, tuple(lengths))]))
    clock.run()

    # A host digests each group when it ends. Here it digests all of them at the end, which is an upper bound.
    digested_s, summed_s = max(h.end + h.carried * costs.digest_s for h in hosts), len(groups) * costs.group_s
    report_s = max(REPORT_S, num_host / NUM_REPORT)
    polled = sum(3 + int(h.end / report_s) for h in hosts)
    busy_s = {role: sum(r.busy for r in found) / len(found) for role, found in replicas.items()}
    busy_s |= {"learner": 0.0, "driver": summed_s + polled * costs.call_s}
    step = Step(rollout_s, digested_s + summed_s, clock.now - rollout_s, polled, busy_s)
    made = {"policy": load.policy_share * sum(t.prompt + t.response for t in turns)}  # tokens of Samples
    packed = {"policy": load.policy_share * sum(e[-1].prompt + e[-1].response for e in episodes)}
    if "reward" in replicas:
        made["reward"] = load.reward_share * (judged + sum(t.judge_prompt * len(t.judged) for t in turns))
        packed["reward"] = load.reward_share * (judged + sum(e[-1].judge_prompt for e in episodes))
    sets = {"policy": load.policy_share * len(episodes), "reward": load.reward_share * len(episodes)}
    nodes = len({slot.node for slot in placement.learners})
    ranks_s = world * costs.call_s + world * world / 2 * costs.wait_s  # the driver calls all, and waits for each
    for role, tokens in made.items():
        update, useful = update_s(role, packed[role], world, config, hardware)
        driver = sets[role] * costs.set_s + 2 * ranks_s  # the shares, then the updates
        calls = 2 * ranks_s + 2 * len(replicas[role]) * costs.call_s  # stage, checksum; load, checksum
        # Each node sends what its host made and gets what its ranks train on.
        spread = SAMPLE_BYTES * tokens / nodes / hardware.object_bytes_s if nodes > 1 else 0.0
        step.learn_s += driver + spread + tokens / world * costs.tree_s + update
        step.sync_s += calls + sync_s(role, placement, config, costs, hardware)
        step.calls += 4 * world + 3 * len(replicas[role]) + 1  # stats too, and the board
        busy_s["learner"] += useful
        busy_s["driver"] += driver + calls
    return step
