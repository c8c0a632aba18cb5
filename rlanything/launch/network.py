"""Where a job's Ray listens, who may talk to it, and how the nodes reach each other.

Ray executes any code that it is sent. So it accepts only clients that know the run's token, and listens on the loopback
only if all nodes are one machine.
Source: docs.ray.io, "Ray security: token authentication"; `ray._private.services` of Ray 2.60.
"""

import ipaddress
import os
import secrets
import socket
from collections.abc import Mapping

import psutil
from ray._private import ray_constants, services

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 32
# For a client of a Ray at LOOPBACK: Ray would replace that address by this machine's address in the network.
ASK_LOOPBACK = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}
# Ray runs its workers at nice 15, for others' sake. Here the workers do all the work, so on CPUs they would starve.
NODE_ENV = {"RAY_worker_niceness": "0"}
PROBE = ("192.0.2.1", 9)  # RFC 5737 reserves this address: no machine has it, so the route to it is the default route


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


def address_of(host: str) -> str:
    """The IPv4 address of a host name: schedulers give names, but Ray needs a node's address.

    Some systems map their own name to the loopback, where no other node reaches them; the result is then this machine's
    address on the default route. Raises OSError if the name is unknown or no default route exists.
    """
    entries = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in entries]
    if host in ("localhost", addresses[0]) or not all(ipaddress.ip_address(a).is_loopback for a in addresses):
        return next((a for a in addresses if not ipaddress.ip_address(a).is_loopback), addresses[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(PROBE)  # sends nothing, only chooses the route: see udp(7)
        return str(probe.getsockname()[0])


def use_interface(address: str) -> None:
    """Have gloo use the network interface with `address`, by which Ray knows this machine, if there is one.

    By default gloo takes the interface of the host's own name, which is the loopback on some machines.
    """
    names = [name for name, entries in psutil.net_if_addrs().items() if any(e.address == address for e in entries)]
    if names:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", names[0])


def main() -> None:
    """Ray's command line after `allow_loopback`: `python -m rlanything.launch.network start ...`."""
    allow_loopback()
    from ray.scripts.scripts import main as ray_main

    ray_main()


if __name__ == "__main__":
    main()
