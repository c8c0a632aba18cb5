"""Variables of this process's environment that hold for a while."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden_accelerators() -> Iterator[None]:
    """No library that starts in the block finds an accelerator; processes that start after it find them again."""
    name = "CUDA_VISIBLE_DEVICES"
    before = os.environ.get(name)
    os.environ[name] = ""
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before
