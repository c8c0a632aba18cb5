"""Settings of a Ray that a run starts.

Ray executes any code that it is sent. So it accepts only clients that know the run's token, and listens on the loopback
only if all nodes are one machine.
Source: docs.ray.io, "Ray security: token authentication"; `ray._private.services` of Ray 2.60.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from ray._private import ray_constants, services

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 32
# For a client of a Ray at LOOPBACK: Ray would replace that address by this machine's address in the network.
ASK_LOOPBACK = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}
# Ray runs its workers at nice 15, for others' sake. Here the workers do all the work, so on CPUs they would starve.
NODE_ENV = {"RAY_worker_niceness": "0"}


def fresh_token(env: Mapping[str, str]) -> str:
    """A new token for Ray; "" if `env` already says how Ray authenticates. Ray would write its own token to a file."""
    configured = any(name in env for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    return "" if configured else secrets.token_hex(TOKEN_BYTES)


def authentication(token: str) -> dict[str, str]:
    """The environment variables that make Ray ask for `token`; none for ""."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {}


def allow_loopback() -> None:
    """Have Ray in this process listen at LOOPBACK only; by default it replaces that by this machine's address."""
    services.resolve_ip_for_localhost = lambda host: host


def main() -> None:
    """Ray's command line after `allow_loopback`: `python -m rlanything.launch.access start ...`."""
    allow_loopback()
    from ray.scripts.scripts import main as ray_main

    ray_main()


if __name__ == "__main__":
    main()
