"""Continuous batching: chooses the sequences of the next model step, and how many tokens of each. Holds no tensors."""

from dataclasses import dataclass, field

import numpy as np

from rlanything.engines.base import EngineError, EngineStats
from rlanything.engines.local import Request
from rlanything.engines.small.blocks import BlockPool, Chain, Key

MAX_STEP_TOKENS = 4096  # of one forward pass: bounds its activations; longer prefills take several passes


@dataclass(eq=False, slots=True)
class Sequence:
    """Sample `index` of a request."""

    request: Request
    index: int
    row: int
    """Its row of the block table."""
    chain: Chain
    tokens: list[int]
    """Prompt, and response so far."""
    computed: int
    """The number of tokens that are in the cache."""
    next_key: Key
    """Names the block that its prefill computes first."""
    logprobs: list[float] = field(default_factory=list)


class Scheduler:
    """Requests in, batches out. `table` [max_num_seqs, blocks] holds the block indices of each sequence's row."""

    def __init__(self, pool: BlockPool, max_num_seqs: int, max_model_len: int, stats: EngineStats) -> None:
        self.pool = pool
        self.stats = stats
        self.max_num_seqs = max_num_seqs
        self.table = np.zeros((max_num_seqs, pool.blocks_for(max_model_len)), dtype=np.int64)
        self.waiting: list[Request] = []
        self.running: list[Sequence] = []
        self._rows = list(range(max_num_seqs))[::-1]

    def submit(self, request: Request) -> None:
        """Queue a request. Raises EngineError if it could never be admitted."""
        needed = self._blocks_needed(request)
        if request.n > self.max_num_seqs or needed > self.pool.num_blocks:
            raise EngineError(
                f"{request.n} samples of {len(request.prompt)} + {request.max_tokens} tokens need {request.n} "
                f"sequences and {needed} cache blocks, found engine.max_num_seqs={self.max_num_seqs} and "
                f"{self.pool.num_blocks} blocks: raise engine.max_num_seqs or engine.kv_cache_gb, or ask for less"
            )
        self.waiting.append(request)

    def abort(self, numbers: list[int]) -> None:
        """Forget requests."""
        self.waiting = [request for request in self.waiting if request.number not in numbers]
        for sequence in [s for s in self.running if s.request.number in numbers]:
            self.release(sequence)

    def admit(self) -> None:
        """Start waiting requests in order while they fit.

        If another request is about to prefill the next block of this one, this one waits a step and then shares it.
        """
        prefilling = {s.next_key for s in self.running if not s.logprobs}
        room = self.max_num_seqs - sum(1 if s.logprobs else s.request.n for s in self.running)
        postponed: list[Request] = []
        for position, request in enumerate(self.waiting):
            match = self.pool.match(request.prompt)
            if match.next_key in prefilling and len(match.next_key[1]) == self.pool.block_size:
                postponed.append(request)
                continue
            needed = self._blocks_needed(request)
            chain = self.pool.open(match, needed) if request.n <= room else None
            if chain is None:
                postponed.extend(self.waiting[position:])
                break
            room -= request.n
            prefilling.add(match.next_key)
            cached = len(match.blocks) * self.pool.block_size + match.partial
            self._start(request, 0, chain, cached, match.next_key)
            self.stats.prompt_tokens += len(request.prompt)
            self.stats.cached_prompt_tokens += cached
        self.waiting = postponed

    def select(self) -> list[tuple[Sequence, int]]:
        """(sequence, number of its tokens) for the next step: decodes first, then prefills, while they fit."""
        budget = MAX_STEP_TOKENS
        chosen: list[tuple[Sequence, int]] = []
        for sequence in sorted(self.running, key=lambda s: not s.logprobs):
            length = min(len(sequence.tokens) - sequence.computed, budget)
            if not length:
                break
            budget -= length
            chosen.append((sequence, length))
            have = len(sequence.chain.blocks)
            for i, block in enumerate(self.pool.grow(sequence.chain, sequence.computed + length), start=have):
                self.table[sequence.row, i] = block.index
        return chosen

    def advance(self, batch: list[tuple[Sequence, int]]) -> list[tuple[int, Sequence]]:
        """Publish what a step has computed. Returns (position in the batch, sequence) of each that samples a token now.

        The other samples of a request start at its first response token, from the same logits.
        """
        size = self.pool.block_size
        ready: list[tuple[int, Sequence]] = []
        for position, (sequence, length) in enumerate(batch):
            sequence.computed += length
            complete = sequence.computed == len(sequence.tokens)
            prefilled = complete and not sequence.logprobs
            if prefilled or sequence.computed % size < length:
                self.pool.seal(sequence.chain, sequence.tokens, sequence.computed, partial=prefilled)
            if complete:
                ready.append((position, sequence))
            if prefilled:
                ready.extend((position, self._fork(sequence, index)) for index in range(1, sequence.request.n))
        return ready

    def release(self, sequence: Sequence) -> None:
        """Take a sequence out; its tokens stay cached for the next prompt that starts alike."""
        self.pool.seal(sequence.chain, sequence.tokens, sequence.computed, partial=True)
        self.pool.close(sequence.chain)
        self.running.remove(sequence)
        self._rows.append(sequence.row)

    def _blocks_needed(self, request: Request) -> int:
        whole = self.pool.blocks_for(len(request.prompt) + request.max_tokens)  # of one sample
        return whole + (request.n - 1) * (whole - len(request.prompt) // self.pool.block_size)

    def _start(self, request: Request, index: int, chain: Chain, computed: int, next_key: Key) -> Sequence:
        sequence = Sequence(request, index, self._rows.pop(), chain, list(request.prompt), computed, next_key)
        self.table[sequence.row, : len(chain.blocks)] = [block.index for block in chain.blocks]
        self.running.append(sequence)
        return sequence

    def _fork(self, sequence: Sequence, index: int) -> Sequence:
        request, pool = sequence.request, self.pool
        budget = pool.blocks_for(len(request.prompt) + request.max_tokens) - sequence.computed // pool.block_size
        chain = pool.fork(sequence.chain, sequence.computed, budget)
        return self._start(request, index, chain, sequence.computed, sequence.next_key)
