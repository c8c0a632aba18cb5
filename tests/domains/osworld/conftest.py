"""Desktops for tests: a real one, and a small server of OSWorld's kind, with faults to order."""

from __future__ import annotations

import subprocess
import sys

import pytest
from desktop_world import FAKE, few_desktops


@pytest.fixture
def domain(tmp_path):
    """Generated tasks on one real desktop."""
    with few_desktops(tmp_path) as made:
        yield made


@pytest.fixture
def guests():
    """`guests(fault)` starts a server and returns (process, port)."""
    started = []

    def start(fault: str = "", port: int = 0):
        process = subprocess.Popen([sys.executable, str(FAKE), str(port), fault], stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process, int(process.stdout.readline().split()[1])

    yield start
    for process in started:
        process.kill()
        process.wait()
