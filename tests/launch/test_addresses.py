"""Addresses by which nodes reach each other: of names, and of a host that calls itself the loopback."""

import os
import socket

import pytest

from rlanything.launch import addresses
from rlanything.launch.addresses import address_of, use_interface


def test_an_address_stays_as_it_is():
    assert [address_of(a) for a in ("10.1.2.3", "127.0.0.1", "localhost")] == ["10.1.2.3", "127.0.0.1", "127.0.0.1"]


def test_a_name_means_the_address_that_others_reach(monkeypatch):
    def found(*there):
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(2, 1, 6, "", (address, 0)) for address in there])

    found("127.0.1.1", "10.1.2.3")
    assert address_of("head") == "10.1.2.3"
    monkeypatch.setattr(addresses, "PROBE", ("127.0.0.2", 9))  # the route there is over the loopback
    found("127.0.1.1")
    assert address_of("head") == "127.0.0.1"


def test_a_name_that_nobody_knows_is_an_os_error():
    with pytest.raises(OSError, match="nonesuch|known|resolution"):
        address_of("nonesuch.invalid")


def test_gloo_uses_the_interface_of_the_address_and_chooses_itself_where_none_has_it(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")  # and undone at the end
    use_interface("203.0.113.7")
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    use_interface("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
