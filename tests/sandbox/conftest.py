"""A sandbox for all tests of a file."""

import pytest

from rlanything.sandbox.pool import Sandbox


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(2) as sandbox:
        assert sandbox.isolated
        yield sandbox
