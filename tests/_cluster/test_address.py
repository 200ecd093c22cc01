"""Processes of a run listen on free ports of a range."""

import errno

import pytest

from accelerando._cluster import address
from accelerando._cluster.address import Address, listen

HOST = "127.0.0.1"


@pytest.mark.parametrize("free", [36000, 36999, None])
def test_the_only_free_port_of_the_range_is_found(monkeypatch, free):
    tried = []

    def create_server(place, **options):
        tried.append(place[1])
        if place[1] != free:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return "server"

    monkeypatch.setattr(address.socket, "create_server", create_server)
    if free is None:
        with pytest.raises(OSError, match=r"No port of 36000:36999 \(accelerando.ports\) is free"):
            listen(HOST, (36000, 36999))
        assert sorted(tried) == list(range(36000, 37000))
    else:
        assert listen(HOST, (36000, 36999)) == "server"
        assert set(tried) <= set(range(36000, 37000))


def test_an_address_of_another_machine_is_not_a_matter_of_ports():
    with pytest.raises(OSError, match=r"[Aa]ssign"):
        listen("192.0.2.1", (36000, 36999))  # reserved for documentation


def test_ipv6_addresses_are_shown_in_brackets():
    assert Address("10.0.0.1", 8786).where == "10.0.0.1:8786"
    assert Address("fd77::1", 8786).where == "[fd77::1]:8786"


def test_addresses_that_no_other_machine_can_reach():
    assert [Address(host, 1).is_loopback for host in ("127.0.0.1", "127.0.1.1", "::1")] == [
        True
    ] * 3
    assert not Address("10.127.0.1", 1).is_loopback
