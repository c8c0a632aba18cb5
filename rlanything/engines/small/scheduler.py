"""Continuous batching without any tensor: which sequences take part in the next model step, with how many tokens."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from rlanything.engines.base import Completion, EngineError, SamplingParams
from rlanything.engines.small.blocks import BlockPool, Chain

MAX_STEP_TOKENS = 4096  # tokens of one forward pass: bounds its activations; longer prefills take several


@dataclass(eq=False, slots=True)
class Request:
    """One call of `generate`: a prompt and its `n` completions, by sample index as they finish."""

    prompt: list[int]
    sampling: SamplingParams
    n: int
    seed: int
    max_tokens: int
    future: asyncio.Future[list[Completion]]
    completions: dict[int, Completion] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Sequence:
    """Sample `index` of a request. `tokens` is prompt and response so far, of which `computed` are in the cache.

    `row` is its row of the block table, `next_key` names the block that its prefill computes first.
    """

    request: Request
    index: int
    row: int
    chain: Chain
    tokens: list[int]
    computed: int
    next_key: tuple[int, tuple[int, ...]]
    logprobs: list[float] = field(default_factory=list)


class Scheduler:
    """Requests in, batches out. `table` [max_num_seqs, blocks] holds the block indices of each sequence's row."""

    def __init__(self, pool: BlockPool, max_num_seqs: int, max_model_len: int) -> None:
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.table = np.zeros((max_num_seqs, pool.blocks_for(max_model_len)), dtype=np.int64)
        self.waiting: list[Request] = []
        self.running: list[Sequence] = []
        self.prompt_tokens = 0
        self.cached_prompt_tokens = 0
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

    def drop_cancelled(self) -> None:
        """Forget requests whose caller no longer waits."""
        self.waiting = [request for request in self.waiting if not request.future.done()]
        for sequence in [s for s in self.running if s.request.future.done()]:
            self.release(sequence)

    def admit(self) -> None:
        """Start waiting requests in order while they fit.

        A request whose next block another one is prefilling in this very step waits a step and then shares it.
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
            if request.n > room or not self.pool.admits(match, needed):
                postponed.extend(self.waiting[position:])
                break
            room -= request.n
            prefilling.add(match.next_key)
            chain = self.pool.open(match, needed)
            cached = len(match.blocks) * self.pool.block_size + match.partial
            self._start(Sequence(request, 0, 0, chain, list(request.prompt), cached, match.next_key))
            self.prompt_tokens += len(request.prompt)
            self.cached_prompt_tokens += cached
        self.waiting = postponed

    def select(self) -> list[tuple[Sequence, int]]:
        """The sequences of the next step, and how many tokens of each: decodes first, then prefills, while they fit."""
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
        """After the step: publish what was computed. Returns (position in the batch, sequence) for all to sample now.

        The other samples of a request start here, at its first token, from the same logits.
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
        whole = self.pool.blocks_for(len(request.prompt) + request.max_tokens)
        return whole + (request.n - 1) * (whole - len(request.prompt) // self.pool.block_size)

    def _start(self, sequence: Sequence) -> None:
        sequence.row = self._rows.pop()
        self.table[sequence.row, : len(sequence.chain.blocks)] = [block.index for block in sequence.chain.blocks]
        self.running.append(sequence)

    def _fork(self, sequence: Sequence, index: int) -> Sequence:
        request, pool = sequence.request, self.pool
        budget = pool.blocks_for(len(request.prompt) + request.max_tokens) - sequence.computed // pool.block_size
        chain = pool.fork(sequence.chain, sequence.computed, budget)
        fork = Sequence(request, index, 0, chain, list(request.prompt), sequence.computed, sequence.next_key)
        self._start(fork)
        return fork
