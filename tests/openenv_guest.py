"""OpenEnv's own server for tests. OPENENV_PYTHON names an interpreter that has the package."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PYTHON = os.environ.get("OPENENV_PYTHON") or str(HERE.parent / "cache/openenv/bin/python")
needs_openenv = pytest.mark.skipif(
    not Path(PYTHON).exists(),
    reason="run scripts/foreign_environments.sh (0.5 GB)",
)


def started(command: list[str], folder: Path | None = None) -> tuple[subprocess.Popen, str]:
    """(process, address) of a server that answers; {port} in the command is its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [word.replace("{port}", str(port)) for word in command]
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health").close()
            return process, url
        except OSError:
            time.sleep(0.2)
    process.kill()
    raise AssertionError(f"the server did not start: {words}")


def start_guess() -> tuple[subprocess.Popen, str]:
    """A server of the game of guessing a number, `openenv_server.py`."""
    return started([PYTHON, str(HERE / "openenv_server.py"), "{port}"])
