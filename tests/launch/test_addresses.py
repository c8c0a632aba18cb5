"""Nodes reach each other by the address of a name, even if a host maps its own name to the loopback."""

import os
import socket

import pytest

from rlanything.launch import network
from rlanything.launch.network import address_of, use_interface


def test_an_address_stays_as_it_is():
    assert [address_of(a) for a in ("10.1.2.3", "127.0.0.1", "localhost")] == ["10.1.2.3", "127.0.0.1", "127.0.0.1"]


def test_a_name_becomes_an_address_that_other_nodes_reach(monkeypatch):
    def resolve_to(*addresses):
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(2, 1, 6, "", (address, 0)) for address in addresses])

    resolve_to("127.0.1.1", "10.1.2.3")
    assert address_of("head") == "10.1.2.3"
    monkeypatch.setattr(network, "PROBE", ("127.0.0.2", 9))  # the route to it goes over the loopback
    resolve_to("127.0.1.1")
    assert address_of("head") == "127.0.0.1"


def test_an_unknown_name_is_an_os_error():
    with pytest.raises(OSError, match="nonesuch|known|resolution"):
        address_of("nonesuch.invalid")


def test_gloo_uses_the_interface_of_the_address_and_its_default_if_none_has_it(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")  # so that monkeypatch restores it at the end
    use_interface("203.0.113.7")
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    use_interface("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
