"""The cache's bookkeeping: which block holds which tokens, with sharing, copy-on-write and LRU eviction. No tensors.

A cache block has room for the keys and values of `block_size` tokens. Sequences that start alike share blocks. A block
that no sequence uses keeps its content until the block is needed (least recently used first). A prompt that extends an
earlier prompt and response therefore finds them. If a block matches a prompt only in part, the prompt's sequence gets a
copy of it, so that reuse is exact to the token.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

ROOT = 0  # content id of the empty prefix

Key = tuple[int, tuple[int, ...]]  # of a block: content id of what precedes it, and its own tokens


@dataclass(eq=False, slots=True)
class Block:
    """One block of the cache."""

    index: int
    refs: int = 0
    """Chains that use it."""
    parent: int = -1
    """Content id of the tokens before it."""
    content: int = -1
    """Content id of all tokens up to its end; -1 until it is full."""
    tokens: tuple[int, ...] = ()


@dataclass(eq=False, slots=True)
class Chain:
    """The blocks of one sequence."""

    blocks: list[Block]
    budget: int
    """How many more blocks it may take; these are set aside for it."""
    sealed: int
    """The number of its first blocks that are full and known to later prompts."""
    content: int
    """Content id of the tokens in these."""


@dataclass(eq=False, slots=True)
class Match:
    """What the cache holds of a prompt: whole `blocks`, then the first `partial` tokens of `source`."""

    blocks: list[Block]
    content: int
    source: Block | None
    partial: int
    next_key: Key


class BlockPool:
    """All blocks of a cache. `copies` maps the target to the source of each copy to make before the next model step."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.copies: dict[int, int] = {}
        self.clear()

    def clear(self) -> None:
        """Forget all content. No chain may be open."""
        self._free: OrderedDict[int, Block] = OrderedDict((i, Block(i)) for i in range(self.num_blocks))
        self._reserved = 0
        self._next_content = ROOT + 1
        self._full: dict[Key, Block] = {}
        self._newest: dict[int, Block] = {}
        self.copies.clear()

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def match(self, tokens: Sequence[int]) -> Match:
        """The longest cached prefix of `tokens`, at most all but the last (whose logits are needed)."""
        size, limit = self.block_size, len(tokens) - 1
        blocks: list[Block] = []
        content, start = ROOT, 0
        while True:
            key = (content, tuple(tokens[start : start + size]))
            block = self._full.get(key)
            if block is None or start + size > limit:
                break
            blocks.append(block)
            content, start = block.content, start + size
        source = block or self._newest.get(content)
        partial = _common(source.tokens, key[1], limit - start) if source else 0
        return Match(blocks, content, source if partial else None, partial, key)

    def open(self, match: Match, num_blocks: int) -> Chain | None:
        """A chain that shares the matched blocks and may grow to `num_blocks`; None if there is no room for it."""
        idle = sum(not block.refs for block in match.blocks)
        if num_blocks - len(match.blocks) + idle > len(self._free) - self._reserved:
            return None
        for block in match.blocks:
            self._take(block)
        chain = Chain(list(match.blocks), num_blocks - len(match.blocks), len(match.blocks), match.content)
        self._reserved += chain.budget
        if match.source is not None:
            self._append_copy(chain, match.source)
        return chain

    def fork(self, chain: Chain, num_tokens: int, budget: int) -> Chain:
        """A second chain with the same `num_tokens` (sealed before), which takes over `budget` of the first's."""
        whole = num_tokens // self.block_size
        for block in chain.blocks[:whole]:
            self._take(block)
        chain.budget -= budget
        fork = Chain(chain.blocks[:whole], budget, chain.sealed, chain.content)
        if num_tokens % self.block_size:
            self._append_copy(fork, chain.blocks[whole])
        return fork

    def grow(self, chain: Chain, num_tokens: int) -> list[Block]:
        """Take blocks until the chain holds `num_tokens`; returns the new ones."""
        new = [self._allocate(chain) for _ in range(self.blocks_for(num_tokens) - len(chain.blocks))]
        chain.blocks.extend(new)
        return new

    def seal(self, chain: Chain, tokens: Sequence[int], computed: int, partial: bool) -> None:
        """Let later prompts find the `computed` tokens: full blocks always, the last one only if `partial`."""
        size = self.block_size
        while (chain.sealed + 1) * size <= computed:
            start = chain.sealed * size
            block = chain.blocks[chain.sealed]
            self._publish(block, chain.content, tuple(tokens[start : start + size]))
            known = self._full.setdefault((chain.content, block.tokens), block)
            if known is block:
                block.content = self._next_content
                self._next_content += 1
            chain.content = known.content
            chain.sealed += 1
        start = chain.sealed * size
        if partial and start < computed:
            self._publish(chain.blocks[chain.sealed], chain.content, tuple(tokens[start:computed]))

    def close(self, chain: Chain) -> None:
        """Give the chain's blocks back; their content stays until they are taken again."""
        self._reserved -= chain.budget
        for block in reversed(chain.blocks):  # the tail becomes the first to be evicted
            block.refs -= 1
            if not block.refs:
                self._free[block.index] = block
        chain.blocks, chain.budget = [], 0

    def _take(self, block: Block) -> None:
        if not block.refs:
            del self._free[block.index]
        block.refs += 1

    def _allocate(self, chain: Chain) -> Block:
        _, block = self._free.popitem(last=False)
        self._forget(block)
        self.copies.pop(block.index, None)  # of an earlier holder
        block.refs = 1
        chain.budget -= 1
        self._reserved -= 1
        return block

    def _append_copy(self, chain: Chain, source: Block) -> None:
        # This allocation may evict the source, whose content stays in memory until the next model step writes. If the
        # source itself still waits for a copy, take the origin of that copy.
        origin = self.copies.get(source.index, source.index)
        target = self._allocate(chain)
        self.copies[target.index] = origin
        chain.blocks.append(target)

    def _publish(self, block: Block, parent: int, tokens: tuple[int, ...]) -> None:
        if block.parent != parent and self._newest.get(block.parent) is block:
            del self._newest[block.parent]
        block.parent, block.tokens = parent, tokens
        self._newest[parent] = block

    def _forget(self, block: Block) -> None:
        if self._full.get((block.parent, block.tokens)) is block:
            del self._full[block.parent, block.tokens]
        if self._newest.get(block.parent) is block:
            del self._newest[block.parent]
        block.parent, block.content, block.tokens = -1, -1, ()


def _common(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """The number of equal tokens at the start of both, at most `limit`."""
    length = max(min(len(a), len(b), limit), 0)
    return next((i for i in range(length) if a[i] != b[i]), length)
