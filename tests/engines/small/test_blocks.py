"""The cache's bookkeeping: which block's content goes where."""

from rlanything.engines.small.blocks import BlockPool


def test_a_block_that_still_waits_to_be_filled_is_no_source_of_a_copy():
    pool, prompt = BlockPool(8, 4), [1, 2, 3, 4, 5, 6]
    first = pool.open(pool.match(prompt), 3)
    pool.grow(first, 6)
    pool.seal(first, prompt, 6, partial=True)
    fork = pool.fork(first, 6, budget=1)  # its last block is a copy that the next model step makes
    waiting, filled = fork.blocks[-1].index, first.blocks[1].index
    assert pool.copies == {waiting: filled}
    pool.seal(fork, prompt, 6, partial=True)  # the sample ended at once: its block is the newest with this content
    pool.close(fork)
    again = pool.open(pool.match([*prompt, 7]), 2)
    assert pool.copies[again.blocks[-1].index] == filled


def test_a_copy_that_its_block_was_taken_from_is_not_made():
    pool, prompt = BlockPool(3, 4), [1, 2, 3, 4, 5, 6]
    first = pool.open(pool.match(prompt), 3)
    pool.grow(first, 6)
    pool.seal(first, prompt, 6, partial=True)
    fork = pool.fork(first, 6, budget=1)
    pool.close(fork)
    other = pool.open(pool.match([9, 9, 9, 9, 9]), 1)
    pool.grow(other, 4)
    assert other.blocks[0].index not in pool.copies
