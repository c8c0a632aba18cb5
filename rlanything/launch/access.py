"""Who reaches a run's Ray, which executes whatever it is sent: those who have its token and, where all nodes are one
machine, nobody from outside of it.

Source: docs.ray.io, "Ray security: token authentication"; `ray._private.services` of Ray 2.60.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ray._private import ray_constants, services

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 32
# For a process that asks for a Ray at LOOPBACK: Ray would look for it at this machine's address in the network.
ASK_LOOPBACK = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}


def fresh_token(env: Mapping[str, str]) -> str:
    """A token for Ray, "" where the environment says how Ray shall authenticate. In memory alone: where Ray is to make
    one, it writes it to the home folder."""
    told = any(name in env for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    return "" if told else secrets.token_hex(TOKEN_BYTES)


def authentication(token: str) -> dict[str, str]:
    """Ray's variables for it."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {}


@contextmanager
def loopback_alone() -> Iterator[None]:
    """A Ray that starts in it listens on the loopback; it would on all interfaces. By its switch for systems whose
    firewall would ask the user, which it reads on import."""
    constants: Any = ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def main() -> None:
    """Ray's command line, where LOOPBACK means that: `python -m rlanything.launch.access start ...`. With the switch
    it would let no second node in."""
    services.resolve_ip_for_localhost = lambda host: host
    from ray.scripts.scripts import main as ray_main

    ray_main()


if __name__ == "__main__":
    main()
