"""By which addresses the nodes of a job reach each other."""

from __future__ import annotations

import ipaddress
import os
import socket

import psutil

PROBE = ("192.0.2.1", 9)  # RFC 5737: no machine has it, so that the route there is the default one


def address_of(host: str) -> str:
    """A host's IPv4 address, by its name, as schedulers give names and Ray takes a node's own as it is.

    Some systems map their own name to the loopback, where no other node reaches it: such a name means this machine, by
    the address that it has in the network. Raises OSError where the name is unknown, or means the loopback alone on a
    machine that has no route to anywhere.
    """
    found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    if host in ("localhost", addresses[0]) or not all(ipaddress.ip_address(a).is_loopback for a in addresses):
        return next((a for a in addresses if not ipaddress.ip_address(a).is_loopback), addresses[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(PROBE)  # sends nothing: see udp(7)
        return str(probe.getsockname()[0])


def use_interface(address: str) -> None:
    """Let gloo use this machine's interface of that address, by which Ray knows it: it would take the one of the
    host's own name, which on some machines is the loopback. Where no interface has it, gloo is left to itself."""
    names = [name for name, found in psutil.net_if_addrs().items() if any(a.address == address for a in found)]
    if names:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", names[0])
