"""The addresses by which the nodes of a job reach each other."""

from __future__ import annotations

import ipaddress
import os
import socket

import psutil

PROBE = ("192.0.2.1", 9)  # RFC 5737 reserves this address: no machine has it, so the route to it is the default route


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
